"""Hands a request to the process that owns it, as it came, and its answer back, as it comes."""

from __future__ import annotations

import asyncio
import logging
import marshal
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any

from router_core.asgi import Receive, Scope, Send
from router_core.errors import Reject
from router_core.headers import one_date_and_server
from router_core.processes.frames import HEAD_OF_ANSWER, LAST, MORE, FrameProtocol, frame, request_frame
from router_core.types import Answer

log = logging.getLogger("router_core")


class Away(Exception):
    """Nothing could be sent to the process."""


class Forwarder:
    """Idle connections to each process, the one that was used last first. ``peers`` are their addresses by slot."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._idle: dict[str, deque[_Connection]] = {}
        self.peers: Sequence[str | None] = ()

    def is_there(self, slot: int) -> bool:
        """Whether the process runs, as far as anybody knows."""
        return self.peers[slot] is not None

    async def forward(self, scope: Scope, receive: Receive, send: Send, slot: int) -> None:
        """Gives the request to the process ``slot``."""
        first = await receive()
        if first["type"] == "http.disconnect":
            return
        try:
            connection = await self._connection(self.peers[slot])
        except Away:
            message = f"process {slot}, which owns this session, is being replaced: nothing was sent"
            await answer(Reject(503, "owner_away", message, retry_after_s=1), send)
            return
        exchange = connection.begin(scope, first)
        client = asyncio.get_running_loop().create_task(exchange.hear_client(receive))
        try:
            await exchange.hear_owner(send)
        finally:
            client.cancel()
            connection.end()
        if not exchange.has_head and not exchange.has_left:
            log.warning("process %d ended with a request that was forwarded to it", slot)
            message = f"process {slot}, which owns this session, ended meanwhile: a worker may have had the request"
            await answer(Reject(502, "owner_lost", message), send)

    async def _connection(self, address: str | None) -> _Connection:
        """Raises Away."""
        if address is None:
            raise Away
        idle = self._idle.setdefault(address, deque())
        while idle:
            connection = idle.pop()
            if connection.is_fresh():
                return connection
            connection.transport.abort()
        loop = asyncio.get_running_loop()
        end = socket.socket(socket.AF_UNIX)
        end.setblocking(False)
        try:
            await loop.sock_connect(end, address)
            _, connection = await loop.create_unix_connection(lambda: _Connection(idle), sock=end)
        except OSError as error:
            end.close()
            raise Away from error
        connection.write(self._secret)
        return connection

    def close(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.transport.abort()


class _Connection(FrameProtocol):
    """A connection to an owner; it goes back to ``idle`` when an exchange has ended whole."""

    def __init__(self, idle: deque[_Connection]) -> None:
        super().__init__()
        self._idle = idle
        self._exchange: _Forwarded | None = None

    def begin(self, scope: Scope, first: Any) -> _Forwarded:
        """Sends the request with the part of its body that is there."""
        self._exchange = _Forwarded(self, is_sent=not first.get("more_body", False))
        self.write(request_frame(scope, first.get("body", b""), is_whole=self._exchange.is_sent))
        return self._exchange

    def end(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None and exchange.is_over and exchange.is_sent and not self.is_lost:
            self._idle.append(self)
        else:
            self.transport.abort()

    def take(self, kind: int, content: bytes) -> None:
        if self._exchange is not None:
            self._exchange.put(kind, content)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self._exchange is not None:
            self._exchange.wake()


class _Forwarded:
    """One request on its way to its owner and back."""

    __slots__ = ("_connection", "_frames", "_unread", "_waiter", "has_head", "has_left", "is_over", "is_sent")

    def __init__(self, connection: _Connection, *, is_sent: bool) -> None:
        self._connection = connection
        self._frames: deque[tuple[int, bytes]] = deque()
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None
        self.is_sent = is_sent
        """Whether the whole request was written."""
        self.has_head = False
        self.has_left = False
        self.is_over = False
        """Whether the answer's last piece has come."""

    def put(self, kind: int, content: bytes) -> None:
        self._frames.append((kind, content))
        self._unread += len(content)
        self._connection.pause_reading_above(self._unread)
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def hear_client(self, receive: Receive) -> None:
        """The rest of the body, and then whether the client leaves: the owner is told by the end of the connection."""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.has_left = True
                self._connection.transport.abort()
                return
            if not self.is_sent:
                self.is_sent = not message.get("more_body", False)
                self._connection.write(frame(LAST if self.is_sent else MORE, message.get("body", b"")))
                await self._connection.drain()

    async def hear_owner(self, send: Send) -> None:
        """The answer, as it comes. Where it breaks off there is no last message, and the server breaks the transfer."""
        while not self.is_over:
            while not self._frames:
                if self._connection.is_lost:
                    return
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            kind, content = self._frames.popleft()
            self._unread -= len(content)
            self._connection.pause_reading_above(self._unread)
            if kind == HEAD_OF_ANSWER:
                status, headers = marshal.loads(content)
                self.has_head = True
                await send({"type": "http.response.start", "status": status, "headers": headers})
            else:
                self.is_over = kind == LAST
                await send({"type": "http.response.body", "body": content, "more_body": not self.is_over})


async def answer(refusal: Reject, send: Send) -> None:
    """The router's envelope."""
    said = Answer.error(refusal)
    headers = one_date_and_server(said.headers.raw)
    await send({"type": "http.response.start", "status": said.status, "headers": headers})
    await send({"type": "http.response.body", "body": said.ready_body or b""})
