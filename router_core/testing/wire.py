"""One TCP connection with nothing hidden: what came, whether and how the other side left, and no write-ahead."""

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from typing import cast

BUFFER_BYTES = 64 * 1024
"""Bytes read ahead of whoever reads; above it the kernel's window fills and the sender is held back."""


class Signal:
    """Wakes whoever waits for a statement to become true; the statement is tried again at each ``notify``."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)


class CutShortError(ConnectionError):
    """The other side ended in the middle of something; ``partial`` is what had come of it."""

    def __init__(self, partial: bytes) -> None:
        super().__init__(f"the connection ended after {len(partial)} bytes of an unfinished part: {partial[:80]!r}")
        self.partial = partial


class Wire(asyncio.Protocol):
    """A connection's two directions.

    A protocol of its own, since asyncio's StreamReader throws away what had come before a reset. ``send`` returns once
    the kernel has taken every byte, so nothing is held here and a slow reader is felt at once.
    """

    def __init__(self, on_made: "Callable[[Wire], None] | None" = None, *, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.is_ended = False
        """The other side has sent its last byte (FIN), and it is in the buffer or read."""
        self.is_lost = False
        """The connection is gone, whoever closed it."""
        self.peer_left_at: float | None = None
        """When the other side's FIN or RST came (time.monotonic)."""
        self.error: Exception | None = None
        """Why it was lost: ConnectionResetError after an RST, None after a close."""
        self._on_made = on_made
        self._buffer = bytearray()
        self._buffer_bytes = buffer_bytes
        self._is_held = False
        self._is_paused = False
        self._is_congested = False
        self._changed = Signal()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        if self._on_made is not None:
            self._on_made(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._set_reading()
        self._changed.notify()

    def eof_received(self) -> bool:
        self.is_ended = True
        self.peer_left_at = time.monotonic()
        self._changed.notify()
        return True  # keep the sending direction open

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.error = exc
        if exc is not None and self.peer_left_at is None:
            self.peer_left_at = time.monotonic()
        self._changed.notify()

    def pause_writing(self) -> None:
        self._is_congested = True

    def resume_writing(self) -> None:
        self._is_congested = False
        self._changed.notify()

    # Reading.

    @property
    def is_over(self) -> bool:
        """No more bytes will come: the other side has left, or this one has."""
        return self.is_ended or self.is_lost

    async def read_some(self, max_bytes: int = 1 << 18) -> bytes:
        """What there is, at least one byte; ``b""`` at a clean end; ConnectionResetError after a reset."""
        await self._wait_for_bytes()
        return self._take(max_bytes)

    async def read_exactly(self, count: int) -> bytes:
        """``count`` bytes, or CutShortError. When cancelled, what had come is read again by the next reader."""
        parts = bytearray()
        try:
            while len(parts) < count:
                await self._wait_for_bytes(parts)
                if not self._buffer:
                    raise CutShortError(bytes(parts))
                parts += self._take(count - len(parts))
        except asyncio.CancelledError:
            self._buffer[:0] = parts
            raise
        return bytes(parts)

    async def read_until(self, mark: bytes, max_bytes: int = 1 << 20) -> bytes:
        """Everything up to and with ``mark``, or CutShortError; ``b""`` when the other side ended before that."""
        parts = bytearray()
        try:
            while not parts.endswith(mark):
                await self._wait_for_bytes(parts)
                if not self._buffer and not parts:
                    return b""
                if not self._buffer or len(parts) > max_bytes:
                    raise CutShortError(bytes(parts))
                parts += self._take_until(mark, parts)
        except asyncio.CancelledError:
            self._buffer[:0] = parts
            raise
        return bytes(parts)

    def hold_reading(self) -> None:
        """Read nothing more until ``resume_reading``: the kernel's buffers fill, then the sender's."""
        self._is_held = True
        self._set_reading()

    def resume_reading(self) -> None:
        self._is_held = False
        self._set_reading()
        self._changed.notify()

    async def wait_for_end(self) -> None:
        """Until no more bytes will come. Not noticed while reading is held or the buffer is full."""
        await self._changed.wait_until(lambda: self.is_over)

    # Writing and leaving.

    async def send(self, data: bytes) -> None:
        """Until the kernel has taken all of it; ConnectionResetError when the connection is gone."""
        if not self._transport.is_closing():
            self._transport.write(data)
            await self._changed.wait_until(lambda: self.is_lost or not self._is_congested)
        if self._transport.is_closing():
            await self.wait_closed()
            raise ConnectionResetError("the connection is gone")

    def end_sending(self) -> None:
        """Send FIN, go on reading."""
        self._transport.write_eof()

    def close(self) -> None:
        """Both directions, with FIN (the kernel makes it an RST when bytes were left unread)."""
        self._transport.abort()

    def reset(self) -> None:
        """Both directions, with RST."""
        if not self.is_lost:
            linger_off = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_off)
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Until the socket is closed on this side."""
        await self._changed.wait_until(lambda: self.is_lost)

    # The buffer.

    async def _wait_for_bytes(self, before: bytearray | None = None) -> None:
        """Until there is a byte or the other side has ended; a reset after ``before`` is CutShortError."""
        await self._changed.wait_until(lambda: (bool(self._buffer) or self.is_over) and not self._is_held)
        if not self._buffer and self.error is not None:
            if before is None:
                raise ConnectionResetError(str(self.error)) from self.error
            raise CutShortError(bytes(before)) from self.error

    def _take(self, max_bytes: int) -> bytes:
        data = bytes(self._buffer[:max_bytes])
        del self._buffer[:max_bytes]
        self._set_reading()
        return data

    def _take_until(self, mark: bytes, before: bytearray) -> bytes:
        overlap = before[-(len(mark) - 1) :] if len(mark) > 1 else bytearray()
        at = (overlap + self._buffer).find(mark)
        return self._take(len(self._buffer) if at < 0 else at + len(mark) - len(overlap))

    def _set_reading(self) -> None:
        should_pause = self._is_held or len(self._buffer) >= self._buffer_bytes
        if should_pause == self._is_paused or self.is_over:
            return
        self._is_paused = should_pause
        if should_pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
