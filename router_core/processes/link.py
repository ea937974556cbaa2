"""What carries messages between the supervisor and a process: one end each of a socket pair that nobody else has.

What is said is pickled, and comes in the order it was sent.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")


class Link:
    """One end, in an event loop."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._unsent = bytearray()
        self._unread = bytearray()
        self._is_closed = False

    def send(self, message: object) -> None:
        """Hands it to the kernel at once, as far as there is room: what is there outlives this process."""
        said = pickle.dumps(message)
        self._unsent += _LENGTH.pack(len(said)) + said
        if len(self._unsent) == len(said) + _LENGTH.size:  # else the loop is at it
            self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._unsent and not self._is_closed:
                del self._unsent[: self._end.send(self._unsent)]
        except BlockingIOError:
            loop.add_writer(self._end, self._flush)
            return
        except OSError:  # nobody is there any more: `receive` says so
            self._unsent.clear()
        if not self._is_closed:
            loop.remove_writer(self._end)

    async def receive(self) -> Any:
        """The next message. Raises EOFError once the other end is gone."""
        (length,) = _LENGTH.unpack(await self._read(_LENGTH.size))
        return pickle.loads(await self._read(length))  # a process of ours wrote it

    async def _read(self, count: int) -> bytes:
        loop = asyncio.get_running_loop()
        while len(self._unread) < count:
            try:
                part = await loop.sock_recv(self._end, 1 << 18)
            except OSError as error:
                raise EOFError from error
            if not part:
                raise EOFError
            self._unread += part
        read = bytes(self._unread[:count])
        del self._unread[:count]
        return read

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            asyncio.get_running_loop().remove_writer(self._end)
            self._end.close()


def read_first(end: socket.socket) -> Any:
    """The first message, before there is a loop."""
    with end.makefile("rb", buffering=0) as file:
        (length,) = _LENGTH.unpack(_exactly(file, _LENGTH.size))
        return pickle.loads(_exactly(file, length))  # our supervisor wrote it


def _exactly(file: Any, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = file.read(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return parts
