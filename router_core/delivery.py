"""Hands an answer to the client: the head once, the body as it comes, an end only when it is whole."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from router_core.attempt import Relay
from router_core.errors import PluginError, Reject
from router_core.headers import RawHeaders, fields_to_send
from router_core.inbound import Inbound, Room
from router_core.loaded_plugin import FAULTS
from router_core.plan import Plan
from router_core.types import Answer, Exchange

NO_BODY: Final = (204, 304)


class Delivery:
    """The client's side of one exchange, on its way out."""

    __slots__ = (
        "_exchange",
        "_inbound",
        "_left",
        "_max_collected_bytes",
        "_observers",
        "answer",
        "has_begun",
        "is_whole",
        "knows_chunks",
    )

    def __init__(self, exchange: Exchange, plan: Plan, inbound: Inbound, *, max_collected_bytes: int) -> None:
        self._exchange = exchange
        self._inbound = inbound
        self._max_collected_bytes = max_collected_bytes
        self._observers = plan.chunk_observers
        self._left: int | None = None
        """Bytes of the body that are still to come; None where nobody declared how many."""
        self.answer: Answer | None = None
        """What is being delivered."""
        self.has_begun = False
        """Whether the head has left: from here on an error can only break the transfer."""
        self.is_whole = False
        self.knows_chunks = inbound.http_version != "1.0"
        """Whether the client does."""

    async def collect(self, answer: Answer) -> None:
        """An answer of unknown length, for a client that knows no chunks. Raises WorkerFault, Reject."""
        self.answer = answer
        if "content-length" not in answer.headers and self._has_body(answer):
            try:
                answer.set_body(await answer.body(self._max_collected_bytes))
            except Reject as error:
                message = f"{error.message} (router.max_collected_bytes, for a client that knows no chunks)"
                raise Reject(error.status, error.code, message) from None

    def send(self, answer: Answer) -> Awaitable[None] | None:
        """Sends it whole, or gives what is to be awaited for that.

        Raises PluginError for a head that no server could send, and what breaks the body off.
        """
        self.answer = answer
        return self._send(answer) if self.knows_chunks else self._collect_and_send(answer)

    async def _collect_and_send(self, answer: Answer) -> None:
        await self.collect(answer)  # a hook may have wrapped it
        if (sending := self._send(answer)) is not None:
            await sending

    def _send(self, answer: Answer) -> Awaitable[None] | None:
        fields, length = _checked(answer)
        body = answer.arrived_body()
        if body is None:
            return self._send_pieces(answer, fields, length)
        if (room := self._send_whole(answer, fields, length, body)) is not None:
            return self._until(room)
        self.is_whole = True
        return None

    async def _until(self, room: Awaitable[None]) -> None:
        await room
        self.is_whole = True

    def _send_whole(self, answer: Answer, fields: RawHeaders, length: int | None, body: bytes) -> Room:
        if not self._has_body(answer):
            body = b""
        elif length is None:
            fields.append((b"content-length", b"%d" % len(body)))
        elif length != len(body):
            raise PluginError("?", "response_start", f"a content length of {length} for {len(body)} bytes")
        if body and self._observers:
            self._observe(body)
        self.has_begun = True
        return self._inbound.whole(answer.status, fields, body)

    async def _send_pieces(self, answer: Answer, fields: RawHeaders, length: int | None) -> None:
        inbound, has_body = self._inbound, self._has_body(answer)
        if (room := inbound.begin(answer.status, fields, is_chunked=has_body and length is None)) is not None:
            await room
        self.has_begun = True
        self._left, chunks = length, answer.chunks
        if isinstance(chunks, Relay) and has_body and not self._observers:
            chunks.pass_to(self._pass)
        async for chunk in chunks:
            if not isinstance(chunk, bytes):  # written later, it would take what is held before it with it
                raise TypeError(f"a chunk of an answer that is no bytes: {chunk!r}")
            if self._observers:
                self._observe(chunk)
            if not has_body or not chunk:
                continue
            if self._left is not None:
                self._left -= len(chunk)
                if self._left < 0:
                    break
            if (room := inbound.write(chunk)) is not None:
                await room
        if has_body and self._left:
            raise RuntimeError(f"the answer's content length is {length}, its body is not")
        if (room := inbound.end()) is not None:
            await room
        self.is_whole = True

    def _pass(self, chunk: bytes) -> bool:
        """Writes a chunk as it comes, if nobody has to wait or to be told; where not, `_send_pieces` does."""
        size = len(chunk)
        if (self._left is not None and size > self._left) or not self._inbound.write_now(chunk):
            return False
        if self._left is not None:
            self._left -= size
        return True

    def _has_body(self, answer: Answer) -> bool:
        return self._exchange.request.method != "HEAD" and answer.status not in NO_BODY

    def _observe(self, chunk: bytes) -> None:
        exchange = self._exchange
        for plugin, call in self._observers:
            try:
                call(exchange, chunk)
            except FAULTS as error:  # nothing depends on an observer
                plugin.failed("response_chunk", error)
                self._observers = tuple(each for each in self._observers if each[0] is not plugin)


def _checked(answer: Answer) -> tuple[RawHeaders, int | None]:
    """The head's fields, and the length of the body that they declare. Raises PluginError where none can be sent."""
    status = answer.status
    if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
        raise PluginError("?", "response_start", f"no status: {status!r}")
    try:
        return fields_to_send(answer.headers.raw, may_have_length=status not in NO_BODY)
    except (AttributeError, TypeError, ValueError) as error:
        raise PluginError("?", "response_start", f"{error}: {answer.headers!r}") from None
