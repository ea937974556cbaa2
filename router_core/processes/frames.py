"""How two processes carry one request and its answer: frames over a connection, one exchange at a time.

A frame is its kind, the length of its content, and the content. A request is the ASGI scope (marshalled, without what
belongs to its process) with the beginning of its body; an answer is its head, then its body as it comes. A connection
begins with the secret of this run: nothing that comes without it is looked at.
"""

from __future__ import annotations

import asyncio
import marshal
import select
import struct
from collections.abc import Mapping
from typing import Any

HEAD = struct.Struct("!BI")
REQUEST, HEAD_OF_ANSWER, MORE, LAST = range(4)
"""Kinds: a request whose body may go on; an answer's head; a piece of a body; the last piece, be it empty."""
SCOPE_KEYS = (
    "type",
    "http_version",
    "server",
    "client",
    "scheme",
    "method",
    "root_path",
    "path",
    "raw_path",
    "query_string",
    "headers",
)
"""What of a scope can be sent to another process, and what is seen of a request."""
HIGH_WATER_BYTES = 1 << 18
"""Unread bytes above which the other side is not read."""


def frame(kind: int, content: bytes) -> bytes:
    return HEAD.pack(kind, len(content)) + content


def sent_scope(scope: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a scope that is sent."""
    return {key: scope[key] for key in SCOPE_KEYS if key in scope}


def request_frame(scope: Mapping[str, Any], body: bytes, *, is_whole: bool) -> bytes:
    return frame(REQUEST, marshal.dumps((sent_scope(scope), body, is_whole)))


class FrameProtocol(asyncio.Protocol):
    """Takes frames out of what comes, and holds writers back while the other side does not read."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.is_lost = False
        self._buffer = bytearray()
        self._can_write: asyncio.Future[None] | None = None
        self._is_paused = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def is_fresh(self) -> bool:
        """Whether an idle connection is open, and silent."""
        return not self.is_lost and not self.transport.is_closing() and not self._poll.poll(0)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start, size = 0, len(buffer)
        while size - start >= HEAD.size:
            kind, length = HEAD.unpack_from(buffer, start)
            end = start + HEAD.size + length
            if size < end:
                break
            self.take(kind, bytes(memoryview(buffer)[start + HEAD.size : end]))
            start = end
        if start:
            del buffer[:start]

    def take(self, kind: int, content: bytes) -> None:
        raise NotImplementedError

    def pause_reading_above(self, unread: int) -> None:
        """Stops or starts reading by how much of what came is not used yet."""
        should_pause = unread > HIGH_WATER_BYTES
        if should_pause != self._is_paused and not self.is_lost:
            self._is_paused = should_pause
            (self.transport.pause_reading if should_pause else self.transport.resume_reading)()

    def write(self, data: bytes) -> None:
        if not self.is_lost:
            self.transport.write(data)

    async def drain(self) -> None:
        """Until the other side has read enough."""
        if self._can_write is not None:
            await asyncio.shield(self._can_write)

    def pause_writing(self) -> None:
        self._can_write = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._can_write is not None and not self._can_write.done():
            self._can_write.set_result(None)
        self._can_write = None

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self.resume_writing()
