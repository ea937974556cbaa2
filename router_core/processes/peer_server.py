"""The owner's side: requests that other processes hand over are served like those of its own connections."""

from __future__ import annotations

import asyncio
import hmac
import logging
import marshal
import select
import socket
from collections import deque
from collections.abc import MutableMapping
from typing import Any

from router_core.asgi import ASGIApp
from router_core.asgi_inbound import HAS_LEFT
from router_core.processes.frames import HEAD_OF_ANSWER, LAST, MORE, REQUEST, FrameProtocol, frame

log = logging.getLogger("router_core")

_LEFT = select.POLLRDHUP | select.POLLHUP | select.POLLERR
DISCONNECT = {"type": "http.disconnect"}


class PeerServer:
    """Serves ``app`` to whoever knows the secret. ``tasks`` holds what runs, for who waits for it at the end."""

    def __init__(self, app: ASGIApp, secret: bytes, tasks: set[asyncio.Task[Any]]) -> None:
        self.app = app
        self.secret = secret
        self.tasks = tasks
        self._server: asyncio.AbstractServer | None = None

    async def listen(self, listener: socket.socket) -> None:
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: _Peer(self), sock=listener)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


class _Peer(FrameProtocol):
    """One connection of a peer, and the request that it carries now."""

    def __init__(self, server: PeerServer) -> None:
        super().__init__()
        self._server = server
        self._is_known = False
        self._exchange: _Served | None = None

    def data_received(self, data: bytes) -> None:
        if not self._is_known:
            self._buffer += data
            secret = self._server.secret
            if len(self._buffer) < len(secret):
                return
            if not hmac.compare_digest(bytes(self._buffer[: len(secret)]), secret):
                self.transport.abort()
                return
            del self._buffer[: len(secret)]
            self._is_known, data = True, b""
        super().data_received(data)

    def take(self, kind: int, content: bytes) -> None:
        if kind == REQUEST:
            scope, body, is_whole = marshal.loads(content)
            scope[HAS_LEFT] = self.has_left
            exchange = self._exchange = _Served(self, body, is_whole=is_whole)
            task = asyncio.get_running_loop().create_task(self._serve(scope, exchange))
            self._server.tasks.add(task)
            task.add_done_callback(self._server.tasks.discard)
        elif self._exchange is not None:
            self._exchange.put(content, is_last=kind == LAST)

    async def _serve(self, scope: MutableMapping[str, Any], exchange: _Served) -> None:
        try:
            await self._server.app(scope, exchange.receive, exchange.send)
        except Exception as error:
            log.error("a forwarded request failed: %r", error, exc_info=error)
        finally:
            if self._exchange is exchange:  # its peer may have begun the next one, once this one was answered
                self._exchange = None
            if not (exchange.is_answered and exchange.is_whole):
                self.transport.close()

    def has_left(self) -> bool:
        """Whether the peer gave the request up, even behind bytes that nobody reads."""
        if self.is_lost or self.transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), _LEFT)
        return bool(poll.poll(0))

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self._exchange is not None:
            self._exchange.wake()


class _Served:
    """One request as its app sees it."""

    __slots__ = ("_body", "_head", "_peer", "_unread", "_waiter", "is_answered", "is_whole")

    def __init__(self, peer: _Peer, body: bytes, *, is_whole: bool) -> None:
        self._peer = peer
        self._body: deque[bytes] = deque((body,))
        self._unread = len(body)
        self._waiter: asyncio.Future[None] | None = None
        self._head = b""
        self.is_whole = is_whole
        """Whether the last byte of the request has come."""
        self.is_answered = False

    def put(self, piece: bytes, *, is_last: bool) -> None:
        self._body.append(piece)
        self._unread += len(piece)
        self.is_whole = self.is_whole or is_last
        self._peer.pause_reading_above(self._unread)
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> MutableMapping[str, Any]:
        while not self._body:
            if self._peer.is_lost or self.is_answered:
                return dict(DISCONNECT)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        piece = self._body.popleft()
        self._unread -= len(piece)
        self._peer.pause_reading_above(self._unread)
        return {"type": "http.request", "body": piece, "more_body": bool(self._body) or not self.is_whole}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._head = frame(HEAD_OF_ANSWER, marshal.dumps((message["status"], list(message.get("headers", ())))))
            return
        if message["type"] != "http.response.body" or self.is_answered:
            return
        more, head = message.get("more_body", False), self._head
        self._head = b""
        self._peer.write(head + frame(MORE if more else LAST, bytes(message.get("body", b""))))
        if more:
            await self._peer.drain()
        else:
            self.is_answered = True
            self.wake()
