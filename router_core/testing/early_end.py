"""The fault behind those that end an answer within its body."""

from collections.abc import Awaitable, Callable

from router_core.testing.connection import Connection, SendData
from router_core.testing.request import ScriptedRequest
from router_core.testing.worker import Fault, Handler


class AnswerEndedError(ConnectionError):
    """The fault has ended the answer; unwinds the handler that was writing it."""


def end_amid(
    end: Callable[[Connection], Awaitable[object]], after_bytes: int | None, after_pieces: int | None
) -> Fault:
    """End the answer once so much of its body has gone out; a piece cut within is, if chunked, an unfinished chunk."""

    def fault(handler: Handler) -> Handler:
        async def faulty(request: ScriptedRequest, connection: Connection) -> bool:
            sent_bytes = sent_pieces = 0
            is_by_pieces = after_pieces is not None

            async def gate(body: bytes, send: SendData) -> None:
                nonlocal sent_bytes, sent_pieces
                room = len(body) if is_by_pieces else max(0, (after_bytes or 0) - sent_bytes)
                if is_by_pieces and sent_pieces >= (after_pieces or 0):
                    room = 0
                if 0 < room < len(body):
                    size_line = b"%x\r\n" % len(body) if view.framing == "chunked" else b""
                    await connection.send(size_line + body[:room])
                elif room:
                    await send(body)
                sent_bytes += min(room, len(body))
                sent_pieces += 1
                if sent_pieces >= (after_pieces or 0) if is_by_pieces else sent_bytes >= (after_bytes or 0):
                    await end(connection)
                    raise AnswerEndedError

            view = connection.bent(gate=gate)
            try:
                await handler(request, view)
            except AnswerEndedError:
                return False
            told = f"after_pieces={after_pieces}" if is_by_pieces else f"after_bytes={after_bytes}"
            raise ValueError(
                f"the answer to {request!r} had only {sent_bytes} bytes in {sent_pieces} pieces: lower {told}"
            )

        return faulty

    return fault
