"""A listening socket that can refuse for a while and keeps its port meanwhile."""

import asyncio
import socket
from collections.abc import Callable


class Listener:
    """Listens on a free port of ``host``; after ``refuse`` again on the same one.

    A second socket, bound and never listening, keeps the port: connecting is refused, and no other program is given it.
    It accepts by itself: asyncio's server loses a connection that it is accepting when it is closed.
    """

    def __init__(self, host: str, receive_buffer_bytes: int | None = None) -> None:
        self.host = host
        self.port = 0
        self._receive_buffer_bytes = receive_buffer_bytes
        self._keeper: socket.socket | None = None
        self._listening: socket.socket | None = None
        self._making: set[asyncio.Task[object]] = set()

    @property
    def is_listening(self) -> bool:
        return self._listening is not None

    async def listen(self, new_protocol: Callable[[], asyncio.Protocol]) -> None:
        if self._listening is not None:
            return
        if self._keeper is None:
            self._keeper = self._bind(self.port)
            self.port = self._keeper.getsockname()[1]
        listening = self._listening = self._bind(self.port)
        listening.listen(1024)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening, new_protocol)

    def _accept(self, listening: socket.socket, new_protocol: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            connection.setblocking(False)
            making = loop.create_task(loop.connect_accepted_socket(new_protocol, connection))
            self._making.add(making)
            making.add_done_callback(self._making.discard)

    def refuse(self) -> None:
        """Accept no more connections."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    async def wait_made(self) -> None:
        """Until every connection that was accepted has its protocol."""
        await asyncio.gather(*self._making, return_exceptions=True)

    def free_port(self) -> None:
        """Refuse for good."""
        self.refuse()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def _bind(self, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self._receive_buffer_bytes is not None:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
        bound.setblocking(False)
        bound.bind((self.host, port))
        return bound
