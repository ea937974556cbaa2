"""A request that belongs to another process takes its connection there: the socket, and what was read.

Between two requests a connection is nothing but a socket, so it is as if the kernel had given it to that process. It
costs less than a hop, and an agent that keeps a connection for its session does it once. Where a connection cannot be
handed over, its request is forwarded, which is never an error.

The sockets between processes are pairs that the supervisor made and keeps: nobody else can write to them, and what a
process has not taken when it ends waits for its successor.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

from router_core.protocol import Protocol

log = logging.getLogger("router_core")

MAX_BYTES = 128 * 1024
"""Bytes of one read above which the connection stays."""
BUFFER_BYTES = 1 << 20
"""What may be on its way to a process, as far as the kernel allows it (``net.core.wmem_max``)."""
AT_ONCE = 64
"""Connections that are taken before others get their turn."""
_FD = struct.Struct("i")


def make_pair() -> tuple[socket.socket, socket.socket]:
    """The end from which a process takes its connections, and the one to which the others give them."""
    taking, giving = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    giving.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    taking.setblocking(False)
    giving.setblocking(False)
    return taking, giving


class Handing:
    """One process's side: gives to ``giving``, by slot, and takes from ``taking``."""

    def __init__(
        self, taking: socket.socket, giving: Sequence[socket.socket], owner_of: Callable[[bytes], int | None]
    ) -> None:
        """``owner_of`` says of the first bytes of a request which other process it belongs to, if to one."""
        self._taking = taking
        self._giving = giving
        self._owner_of = owner_of
        self._buffer = bytearray(MAX_BYTES)
        self.is_open = False

    # ------------------------------------------------------------------------------------------------------------ give
    def give(self, transport: Any, data: bytes) -> bool:
        """Whether the connection was handed over, of which ``data`` was read; then it is nothing to us any more."""
        if not self.is_open or len(data) > MAX_BYTES or (slot := self._owner_of(data)) is None:
            return False
        transport.pause_reading()
        try:
            socket.send_fds(self._giving[slot], [data], [transport.get_extra_info("socket").fileno()])
        except OSError as error:  # it has no room, or has too many on their way
            log.debug("a connection is not handed to process %d: %r", slot, error)
            transport.resume_reading()
            return False
        transport.abort()  # closes our descriptor; the connection lives by the other one
        return True

    # ------------------------------------------------------------------------------------------------------------ take
    def open(self, make_protocol: Callable[[], Any], tasks: set[asyncio.Task[Any]]) -> None:
        """Begins to take connections; ``tasks`` holds those on their way in, for who waits for them at the end."""
        self._make_protocol = make_protocol
        self._tasks = tasks
        self.is_open = True
        asyncio.get_running_loop().add_reader(self._taking, self._take, AT_ONCE)

    def close(self) -> None:
        """Takes what was given already, and nothing from then on."""
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().remove_reader(self._taking)
            self._take(BUFFER_BYTES)

    def _take(self, count: int) -> None:
        for _ in range(count):
            try:
                size, sent, _, _ = self._taking.recvmsg_into([self._buffer], socket.CMSG_SPACE(_FD.size))
            except BlockingIOError:
                return
            fds = [_FD.unpack(value) for _, kind, value in sent if kind == socket.SCM_RIGHTS]
            if not fds:
                log.error("a connection was lost on its way from another process: too many open files")
                continue
            connection, data = socket.socket(fileno=fds[0][0]), bytes(memoryview(self._buffer)[:size])
            task = asyncio.get_running_loop().create_task(self._serve(connection, data), name="takes a connection")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket, data: bytes) -> None:
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Gate(self._make_protocol(), self, data), connection
            )
        except OSError as error:
            log.debug("a connection ended on its way from another process: %r", error)
            connection.close()


class Gate(asyncio.Protocol):
    """Before the protocol of a connection: looks at each request that begins. ``data`` is what another process read."""

    def __init__(self, protocol: Protocol, handing: Handing, data: bytes | None = None) -> None:
        self._protocol = protocol
        self._handing = handing
        self._data = data

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._protocol.connection_made(transport)
        if self._data is not None:
            # not here: the loop begins to read after this call, whatever the protocol says meanwhile
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """It is served here, also if we were of another opinion: a connection is not handed to and fro."""
        data, self._data = self._data, None
        if data is None or self._transport.is_closing():
            return
        self._protocol.data_received(data)
        if not self._handing.is_open:
            self._protocol.shutdown()

    def data_received(self, data: bytes) -> None:
        if self._data is not None:
            self._begin()
        protocol = self._protocol
        if not (protocol.is_between_requests() and self._handing.give(self._transport, data)):
            protocol.data_received(data)

    def eof_received(self) -> Any:
        self._begin()
        return self._protocol.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._data = None
        self._protocol.connection_lost(error)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()
