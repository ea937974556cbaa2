"""Hands a request to the process that owns it, as it came, and its answer back, as it comes.

Between the two it is plain HTTP/1.1 on loopback, by the client for workers. Two fields go with it: the secret of this
run, which nobody outside knows, and what the owner cannot see by itself of the client's connection.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

from router_core.asgi import Receive, Scope, Send
from router_core.errors import ClientLeft, Reject, WorkerFault, WorkerUnreachable
from router_core.headers import content_length, end_to_end, one_date_and_server
from router_core.types import Answer
from router_core.upstream import Outgoing, Upstream

log = logging.getLogger("router_core")

SECRET = b"x-router-peer-secret"
ORIGIN = b"x-router-peer-origin"
_OURS = frozenset((b"host", b"content-length", b"expect", SECRET, ORIGIN))


class Forwarder:
    """Sends to peers by ``upstream``."""

    def __init__(self, upstream: Upstream, secret: bytes) -> None:
        self._upstream = upstream
        self._secret = secret

    async def forward(self, scope: Scope, receive: Receive, send: Send, port: int | None, slot: int) -> None:
        """Gives the request to the process ``slot``, whose port is ``port``."""
        source = _Source(scope, receive)
        try:
            if port is None:
                raise WorkerUnreachable("it is away")
            await source.begin()
            outgoing = self._outgoing(scope, source, port)
            async with source.watched():
                await self._exchange(outgoing, send)
        except ClientLeft:
            return
        except WorkerUnreachable:
            message = f"process {slot}, which owns this session, is being replaced: nothing was sent"
            await answer(Reject(503, "owner_away", message, retry_after_s=1), send)
        except WorkerFault as error:
            log.warning("process %d broke off a forwarded request: %s", slot, error)
            message = f"process {slot}, which owns this session, ended meanwhile: a worker may have had the request"
            await answer(Reject(502, "owner_lost", message), send)

    def _outgoing(self, scope: Scope, source: _Source, port: int) -> Outgoing:
        raw = scope["headers"]
        host = next((value.decode("latin-1") for name, value in raw if name == b"host"), None)
        origin = [scope.get("client"), scope.get("server"), scope["scheme"], scope["http_version"], host]
        headers = [pair for pair in end_to_end(raw) if pair[0] not in _OURS]
        headers += [(SECRET, self._secret), (ORIGIN, json.dumps(origin).encode())]
        query = scope["query_string"]
        target = scope["raw_path"] + b"?" + query if query else scope["raw_path"]
        outgoing = Outgoing(scope["method"], f"http://127.0.0.1:{port}", target, headers, source.whole)
        if source.whole is None and source.has_body:
            outgoing.stream, outgoing.length = source.stream(), source.length
        return outgoing

    async def _exchange(self, outgoing: Outgoing, send: Send) -> None:
        incoming = await self._upstream.send(outgoing, lambda: None)
        try:
            await send({"type": "http.response.start", "status": incoming.status, "headers": incoming.headers})
            try:
                while chunk := await incoming.read():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except WorkerFault as error:
                log.warning("a forwarded answer broke off: %s", error)
                return  # no end: the server breaks the transfer
            await send({"type": "http.response.body"})
        finally:
            incoming.close()


class _Source:
    """The client's side: its body, and whether it left."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        is_chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
        self.length = None if is_chunked else content_length(scope["headers"])
        self.has_body = is_chunked or bool(self.length)
        self.whole: bytes | None = b"" if self.length == 0 else None
        """The body, where it is there already or empty."""
        self._first: MutableMapping[str, Any] | None = None
        self._is_read = asyncio.Event()

    async def begin(self) -> None:
        if not self.has_body:
            self._is_read.set()
            return
        self._first = await self._next()
        if self.length is not None and not self._first.get("more_body", False):
            self.whole = self._first["body"]
            self._is_read.set()

    async def _next(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft("the client left while it sent")
        return message

    async def stream(self) -> AsyncIterator[bytes]:
        message, self._first = self._first, None
        while message is not None:
            if body := message.get("body", b""):
                yield body
            message = await self._next() if message.get("more_body", False) else None
        self._is_read.set()

    def watched(self) -> _Watch:
        """A block that ends with ClientLeft when the client leaves after its body."""
        return _Watch(self._receive, self._is_read)


class _Watch:
    def __init__(self, receive: Receive, is_read: asyncio.Event) -> None:
        self._receive, self._is_read = receive, is_read
        self._has_left = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # a coroutine that runs has a task
        self._task = task
        self._watcher = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        await self._is_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._has_left = True
        self._task.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._watcher.cancel()
        if self._has_left:
            if not isinstance(error, asyncio.CancelledError):  # it is on its way still
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    pass
            self._task.uncancel()
            raise ClientLeft("the client left")


async def answer(refusal: Reject, send: Send) -> None:
    """The router's envelope."""
    said = Answer.error(refusal)
    headers = one_date_and_server(said.headers.raw)
    await send({"type": "http.response.start", "status": said.status, "headers": headers})
    await send({"type": "http.response.body", "body": said.ready_body or b""})


def as_it_came(scope: Scope, secret: bytes) -> Scope | None:
    """The scope of a request that a peer forwarded, as the client's own server had it; None without the secret."""
    given = {name: value for name, value in scope["headers"] if name in (SECRET, ORIGIN)}
    if not hmac.compare_digest(given.get(SECRET, b""), secret):
        return None
    client, server, scheme, http_version, host = json.loads(given[ORIGIN])
    headers = [pair for pair in scope["headers"] if pair[0] not in (SECRET, ORIGIN, b"host")]
    if host is not None:
        headers.insert(0, (b"host", host.encode("latin-1")))
    return {
        **scope,
        "client": tuple(client) if client else None,
        "server": tuple(server) if server else None,
        "scheme": scheme,
        "http_version": http_version,
        "headers": headers,
    }
