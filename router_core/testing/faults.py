"""Faults a scripted worker can have: each stands before the handler and bends one thing.

``worker.fault(Faults.close_amid(after_pieces=2))`` bends the next request; the one after it is normal again. To refuse
connections is the worker's own: ``worker.refuse()``, ``await worker.stop()``.
"""

import asyncio
from typing import Literal

import orjson

from router_core.testing.connection import Connection, Gate, SendData
from router_core.testing.early_end import end_amid
from router_core.testing.http1 import Fields, build_head, raw_pairs
from router_core.testing.request import ScriptedRequest
from router_core.testing.worker import Fault, Handler

ODD_JSON = (
    b'{ "b":1,"a" :2, "a":3, "big": 12345678901234567890123, "e": -1E-05, "nan": [NaN, -Infinity], '
    b'"escaped": "\\u00e9\\ud83d\\ude00", "lone": "\\ud800", "utf8": "\xe4\xbd\xa0", "not_utf8": "\xff\xfe"}\n'
)
"""JSON that only a byte-exact relay leaves as it is."""

GARBAGE = b"\x16\x03\x01 no HTTP at all\r\n\r\n"


class Faults:
    """The faults by name. Where a fault shortens or shapes an answer, it is the answer the handler would have given."""

    # The connection ends.

    @staticmethod
    def close_before_answer(*, reset: bool = False) -> Fault:
        """Read the request, then close (``reset``: with RST) without a byte."""
        return _instead(lambda request, connection: _leave(connection, reset=reset))

    @staticmethod
    def close_amid(*, after_bytes: int | None = None, after_pieces: int | None = None, reset: bool = False) -> Fault:
        """Close within the body: after so many bytes of it, or pieces (chunks, events); by default after the head."""

        async def end(connection: Connection) -> None:
            await _leave(connection, reset=reset)

        return end_amid(end, after_bytes, after_pieces)

    @staticmethod
    def close_after_answer() -> Fault:
        """Answer, then close the kept-alive connection without having said so."""

        def fault(handler: Handler) -> Handler:
            async def faulty(request: ScriptedRequest, connection: Connection) -> bool:
                await handler(request, connection)
                return False

            return faulty

        return fault

    # Time.

    @staticmethod
    def stall() -> Fault:
        """Read the request and never answer; ends when the other side leaves."""
        return _instead(_wait_for_leave)

    @staticmethod
    def stall_amid(*, after_bytes: int | None = None, after_pieces: int | None = None) -> Fault:
        """Fall silent within the body; ends when the other side leaves."""
        return end_amid(lambda connection: _wait_for_leave(None, connection), after_bytes, after_pieces)

    @staticmethod
    def stop_reading(until: asyncio.Event | None = None) -> Fault:
        """Leave the upload unread until the event, or for ever; the sender feels it once the buffers are full."""

        def fault(handler: Handler) -> Handler:
            async def faulty(request: ScriptedRequest, connection: Connection) -> bool | None:
                connection.wire.hold_reading()
                await (until or asyncio.Event()).wait()
                connection.wire.resume_reading()
                return await handler(request, connection)

            return faulty

        return fault

    @staticmethod
    def hold(until: asyncio.Event) -> Fault:
        """Read the request, and answer once the event is set."""

        def fault(handler: Handler) -> Handler:
            async def faulty(request: ScriptedRequest, connection: Connection) -> bool | None:
                await request.read_body()
                await connection.unless_left(until.wait())
                return await handler(request, connection)

            return faulty

        return fault

    @staticmethod
    def delay(delay_s: float) -> Fault:
        """Read the request, and answer later."""

        def fault(handler: Handler) -> Handler:
            async def faulty(request: ScriptedRequest, connection: Connection) -> bool | None:
                await request.read_body()
                await connection.unless_left(asyncio.sleep(delay_s))
                return await handler(request, connection)

            return faulty

        return fault

    @staticmethod
    def slow(*, piece_bytes: int = 16, interval_s: float = 0.01) -> Fault:
        """The body in pieces of so many bytes, each a chunk if chunked, with a pause before each but the first."""
        is_first = True

        async def gate(body: bytes, send: SendData) -> None:
            nonlocal is_first
            for at in range(0, len(body), piece_bytes):
                if not is_first and interval_s:
                    await asyncio.sleep(interval_s)
                is_first = False
                await send(body[at : at + piece_bytes])

        return _bend(gate=gate)

    # Framing and heads.

    @staticmethod
    def chunked(*, piece_bytes: int) -> Fault:
        """The answer chunked, in chunks of at most so many bytes."""

        async def gate(body: bytes, send: SendData) -> None:
            for at in range(0, len(body), piece_bytes):
                await send(body[at : at + piece_bytes])

        return _bend(gate=gate, framing="chunked")

    @staticmethod
    def close_delimited() -> Fault:
        """The answer without any framing: it ends with the connection."""

        def fault(handler: Handler) -> Handler:
            async def faulty(request: ScriptedRequest, connection: Connection) -> bool:
                await handler(request, connection.bent(framing="close"))
                return False

            return faulty

        return fault

    @staticmethod
    def wrong_length(*, by: int) -> Fault:
        """A Content-Length that is off, too long (``by`` > 0) or too short (``by`` < 0); then a close."""

        def fault(handler: Handler) -> Handler:
            async def faulty(request: ScriptedRequest, connection: Connection) -> bool:
                await handler(request, connection.bent(length_error=by))
                return False

            return faulty

        return fault

    @staticmethod
    def headers(fields: Fields) -> Fault:
        """More fields in the answer's head: ``[("Server", "a"), ("Server", "b"), ("X-Note", b"caf\\xe9")]``."""
        return _bend(extra=raw_pairs(fields))

    @staticmethod
    def interim(status: int = 103, fields: Fields = (), *, count: int = 1) -> Fault:
        """``count`` 1xx answers, then the handler's."""
        head = build_head(b"HTTP/1.1 %d Interim" % status, raw_pairs(fields))

        def fault(handler: Handler) -> Handler:
            async def faulty(request: ScriptedRequest, connection: Connection) -> bool | None:
                await request.read_body()
                await connection.send(*[head] * count)
                return await handler(request, connection)

            return faulty

        return fault

    # Other answers.

    @staticmethod
    def status(status: int, headers: Fields = (), body: bytes | None = None) -> Fault:
        """An error answer: ``Faults.status(429, {"Retry-After": "1"})``."""
        told = (
            orjson.dumps({"error": {"message": f"scripted {status}", "type": "scripted", "code": status}})
            if body is None
            else body
        )
        return _instead(lambda request, connection: connection.answer(told, status, headers))

    @staticmethod
    def raw(*parts: bytes, keep_open: bool = False) -> Fault:
        """Read the request, then send exactly these bytes."""

        async def answer(request: ScriptedRequest, connection: Connection) -> bool:
            await connection.send(*parts)
            return keep_open

        return _instead(answer)

    @staticmethod
    def garbage() -> Fault:
        """Bytes that are no HTTP, then a close."""
        return Faults.raw(GARBAGE)

    @staticmethod
    def odd_bytes() -> Fault:
        """A 200 whose JSON has NaN, repeated keys, odd numbers, and bytes that are not UTF-8 (``ODD_JSON``)."""
        return _instead(lambda request, connection: connection.answer(ODD_JSON))

    @staticmethod
    def early_answer(
        status: int = 413, body: bytes = b"{}", *, then: Literal["read", "close", "reset"] = "close"
    ) -> Fault:
        """Answer before the upload was read; then read it and keep the connection, close it unread, or reset it."""

        def fault(handler: Handler) -> Handler:
            async def faulty(request: ScriptedRequest, connection: Connection) -> bool:
                await connection.answer(body, status, () if then == "read" else {"Connection": "close"})
                if then == "reset":
                    connection.reset()
                return then == "read"

            return faulty

        return fault

    @staticmethod
    def huge(mib: int, *, piece_bytes: int = 1 << 16) -> Fault:
        """An answer of ``/generate`` with ``mib`` MiB of routed experts (base64 of int32), made as it is sent."""
        head = (
            b'{"text":"","output_ids":[],"meta_info":{"finish_reason":{"type":"stop","matched":null},"routed_experts":"'
        )
        tail = b'"}}'
        size = mib << 20
        piece = (b"BgAAAAUAAAACAAAAAAAAAAEAAAACAAAABAAAAAUAAAAAAAAABQAAAAIAAAAEAAAA" * (piece_bytes // 64 + 1))[
            :piece_bytes
        ]

        async def answer(request: ScriptedRequest, connection: Connection) -> bool:
            await connection.begin(length=len(head) + size + len(tail))
            await connection.write(head)
            for at in range(0, size, piece_bytes):
                await connection.write(piece[: size - at])
            await connection.write(tail)
            return await connection.end()

        return _instead(answer)


async def _leave(connection: Connection, *, reset: bool) -> bool:
    if reset:
        connection.reset()
    return False


async def _wait_for_leave(request: ScriptedRequest | None, connection: Connection) -> bool:
    await connection.wait_for_leave()
    return False


def _instead(answer: Handler) -> Fault:
    """Read the whole request, then answer so, whatever the handler would have done."""

    def fault(handler: Handler) -> Handler:
        async def faulty(request: ScriptedRequest, connection: Connection) -> bool | None:
            await request.read_body()
            return await answer(request, connection)

        return faulty

    return fault


def _bend(*, gate: Gate | None = None, framing: Literal["chunked"] | None = None, extra: Fields = ()) -> Fault:
    def fault(handler: Handler) -> Handler:
        async def faulty(request: ScriptedRequest, connection: Connection) -> bool | None:
            return await handler(request, connection.bent(gate=gate, framing=framing, extra=extra))

        return faulty

    return fault
