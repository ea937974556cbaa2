"""Writes of one turn of the event loop go to the system together, where there are several.

A write that wakes a sleeping peer costs several times what one to a busy peer does. Written one by one, between the
work for one request and that for the next, each finds its peer asleep again; in a row, only the first does. After a
turn with one writer the first write of the next passes at once: most likely it is the only one, and need not wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final, Protocol

log = logging.getLogger("router_core")

HELD_BYTES: Final = 64 * 1024
"""What a connection holds back for the end of the turn at most; copying more would cost more than it saves."""


class Writer(Protocol):
    """Who has something to write."""

    def flush(self) -> None:
        """Writes it."""


class Outbox:
    """Who has something to write at the end of this turn of the event loop, in order."""

    __slots__ = ("_is_quiet", "_waiting", "_writers")

    def __init__(self) -> None:
        self._waiting: list[Writer] = []
        self._writers = 0
        """Of this turn, with the one that passed."""
        self._is_quiet = True
        """Whether the last turn that had a writer had one alone."""

    def may_pass(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether a writer may write at once, which it then has to; else it is to be added."""
        if self._writers or not self._is_quiet:
            return False
        self._writers = 1
        loop.call_soon(self._end)
        return True

    def add(self, writer: Writer, loop: asyncio.AbstractEventLoop) -> None:
        """``writer`` is flushed once, after what runs in this turn has run."""
        if not self._writers:
            loop.call_soon(self._end)
        self._writers += 1
        self._waiting.append(writer)

    def _end(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._is_quiet, self._writers = self._writers == 1, 0
        for writer in waiting:
            try:
                writer.flush()
            except Exception:
                log.exception("a connection could not be written to")


class OutboxTransport(asyncio.Transport):
    """A connection's transport whose small writes wait for the end of the turn; the others pass at once, in order."""

    def __init__(self, transport: Any, outbox: Outbox, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._outbox = outbox
        self._loop = loop
        self._parts: list[bytes] = []
        self._held_bytes = 0

    def write(self, data: bytes) -> None:  # type: ignore[override]  # bytes are what is written here
        size = len(data)
        if self._held_bytes + size > HELD_BYTES:
            self.flush()
            self._transport.write(data)
            return
        if not self._parts:
            self._outbox.add(self, self._loop)
        self._parts.append(data)
        self._held_bytes += size

    def pass_on(self, data: bytes) -> None:
        """Writes what nothing of this turn follows, most likely: at once, if nobody else writes."""
        if not self._parts and self._outbox.may_pass(self._loop):
            self._transport.write(data)
        else:
            self.write(data)

    def writelines(self, list_of_data: Iterable[bytes]) -> None:  # type: ignore[override]
        for data in list_of_data:
            self.write(data)

    def flush(self) -> None:
        """Writes what was held back, at once."""
        parts = self._parts
        if not parts:
            return
        self._parts, self._held_bytes = [], 0
        if not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._parts, self._held_bytes = [], 0
        self._transport.abort()

    def is_closing(self) -> bool:
        closing: bool = self._transport.is_closing()
        return closing

    def get_write_buffer_size(self) -> int:
        size: int = self._transport.get_write_buffer_size()
        return size + self._held_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def can_write_eof(self) -> bool:
        return False

    def is_reading(self) -> bool:
        reading: bool = self._transport.is_reading()
        return reading
