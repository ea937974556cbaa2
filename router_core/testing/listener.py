"""A listening socket that can refuse for a while and keeps its port meanwhile."""

import asyncio
import socket
from collections.abc import Callable


class Listener:
    """Listens on a free port of ``host``; after ``refuse`` again on the same one.

    A second socket, bound and never listening, keeps the port: connecting is refused, and no other program is given it.
    """

    def __init__(self, host: str, receive_buffer_bytes: int | None = None) -> None:
        self.host = host
        self.port = 0
        self._receive_buffer_bytes = receive_buffer_bytes
        self._keeper: socket.socket | None = None
        self._server: asyncio.Server | None = None

    @property
    def is_listening(self) -> bool:
        return self._server is not None

    async def listen(self, new_protocol: Callable[[], asyncio.Protocol]) -> None:
        if self._server is not None:
            return
        if self._keeper is None:
            self._keeper = self._bind(self.port)
            self.port = self._keeper.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(new_protocol, sock=self._bind(self.port), backlog=1024)

    def refuse(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()
            self._server = None

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
