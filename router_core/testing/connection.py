"""A connection as a scripted worker's handler uses it: raw bytes, or an answer in parts that faults may bend."""

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Self

from router_core.testing.http1 import LAST_CHUNK, Fields, Framing, RawPairs, build_head, encode_chunk, raw_pairs
from router_core.testing.wire import Wire

SendData = Callable[[bytes], Awaitable[None]]
Gate = Callable[[bytes, SendData], Awaitable[None]]
"""Stands before each piece of an answer's body: passes it on, in parts, later, or not at all."""

REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 413: b"Content Too Large", 429: b"Too Many Requests",
           500: b"Internal Server Error", 502: b"Bad Gateway", 503: b"Service Unavailable"}  # fmt: skip


class Connection:
    """One accepted connection.

    ``send`` writes bytes as they are. ``answer`` and ``begin`` / ``write`` / ``end`` write an answer; these a fault may
    bend through a view made by ``bent``.
    """

    def __init__(self, wire: Wire, number: int) -> None:
        self.wire = wire
        self.number = number
        """1 for the first connection a worker accepted."""
        self.opened_at = time.monotonic()
        self.requests_read = 0
        self.answers_head = False
        """Whether the request at hand is a HEAD, so that no body may follow."""
        self._gate: Gate | None = None
        self._forced_framing: Framing | None = None
        self._length_error = 0
        self._extra: RawPairs = []
        self._framing: Framing = "none"

    # Bytes as they are.

    async def send(self, *parts: bytes) -> None:
        """Exactly these bytes; returns when the kernel has taken them, ConnectionResetError when the peer is gone."""
        for part in parts:
            await self.wire.send(part)

    async def send_chunk(self, data: bytes) -> None:
        """One chunk of a chunked body."""
        await self.wire.send(encode_chunk(data))

    def close(self) -> None:
        """FIN, at once."""
        self.wire.close()

    def reset(self) -> None:
        """RST, at once."""
        self.wire.reset()

    @property
    def framing(self) -> Framing:
        """Of the answer begun last."""
        return self._framing

    @property
    def peer_has_left(self) -> bool:
        """Whether the other side has closed or reset the connection (a half-close counts)."""
        return self.wire.peer_left_at is not None

    @property
    def peer_left_at(self) -> float | None:
        """When that was (time.monotonic)."""
        return self.wire.peer_left_at

    async def wait_for_leave(self, timeout_s: float | None = None) -> bool:
        """True as soon as the other side has left, False after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.wire.wait_for_end()
        except TimeoutError:
            return False
        return True

    async def unless_left(self, wait: Coroutine[Any, Any, object]) -> None:
        """Wait for this; ConnectionResetError when the other side leaves first."""
        waits = [asyncio.ensure_future(wait), asyncio.ensure_future(self.wire.wait_for_end())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not waits[0].done():
                raise ConnectionResetError("the other side left")
            waits[0].result()
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    # An answer.

    async def answer(
        self,
        body: bytes = b"{}",
        status: int = 200,
        headers: Fields = (),
        *,
        content_type: str | None = "application/json",
    ) -> bool:
        """A whole answer with its length; returns True: keep the connection open."""
        await self.begin(status, headers, content_type=content_type, length=len(body))
        await self.write(body)
        return await self.end()

    async def begin(
        self,
        status: int = 200,
        headers: Fields = (),
        *,
        content_type: str | None = "application/json",
        length: int | None = None,
    ) -> None:
        """The head of an answer: with ``length`` it says so, without it is chunked."""
        self._framing = self._forced_framing or ("chunked" if length is None else "length")
        pairs = raw_pairs({} if content_type is None else {"Content-Type": content_type})
        if self._framing == "length":
            pairs.append((b"Content-Length", b"%d" % max(0, (length or 0) + self._length_error)))
        elif self._framing == "chunked":
            pairs.append((b"Transfer-Encoding", b"chunked"))
        pairs += [*raw_pairs(headers), *self._extra]
        await self.wire.send(build_head(b"HTTP/1.1 %d %b" % (status, REASONS.get(status, b"Scripted")), pairs))

    async def write(self, data: bytes) -> None:
        """A piece of the body; one chunk, if chunked."""
        if not data or self.answers_head:
            return
        if self._gate is None:
            await self._write_plain(data)
        else:
            await self._gate(data, self._write_plain)

    async def end(self) -> bool:
        """The end of the body; returns whether the connection may stay open."""
        if self._framing == "chunked" and not self.answers_head:
            await self.wire.send(LAST_CHUNK)
        return self._framing != "close"

    def bent(
        self,
        *,
        gate: Gate | None = None,
        framing: Framing | None = None,
        length_error: int = 0,
        extra: Fields = (),
    ) -> Self:
        """A view of this connection whose answers differ: see faults.py. Bends add up."""
        view = copy.copy(self)
        view._gate = _in_turn(gate, self._gate)
        view._forced_framing = framing or self._forced_framing
        view._length_error = self._length_error + length_error
        view._extra = [*self._extra, *raw_pairs(extra)]
        return view

    async def _write_plain(self, data: bytes) -> None:
        if self._framing == "chunked":
            data = encode_chunk(data)
        await self.wire.send(data)


def _in_turn(inner: Gate | None, outer: Gate | None) -> Gate | None:
    if inner is None or outer is None:
        return inner or outer

    async def gate(data: bytes, send: SendData) -> None:
        await inner(data, lambda part: outer(part, send))

    return gate
