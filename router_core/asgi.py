"""The ASGI face: sends a request to the router's own routes or on to a worker, and guards what leaves."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Protocol
from urllib.parse import unquote_to_bytes

from router_core.access import DATA_ADDRESS, Access
from router_core.asgi_inbound import BROKEN, AsgiInbound, Broken
from router_core.errors import Reject
from router_core.headers import RawHeaders, one_date_and_server
from router_core.in_use import InUse
from router_core.proxy import Proxy
from router_core.types import Answer

log = logging.getLogger("router_core")

KEPT_PATHS: Final = 4096
KEPT_PATH_BYTES: Final = 256
_PERCENT: Final = 0x25  # a number is found in bytes at a tenth of the cost

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ASGIApp(Protocol):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Routes(Protocol):
    """The router's own routes. ``claimed`` are first path segments that belong to them; all else is proxied, but for
    the whole paths ``claimed_paths``.

    Below ``/sessions/{id}/`` only ``session_nouns`` belong to them; the rest are turns of that session.
    """

    app: ASGIApp
    claimed: frozenset[bytes]
    claimed_paths: frozenset[bytes]
    session_nouns: frozenset[bytes]
    in_use: InUse

    def is_of_plugin(self, scope: Scope) -> bool: ...


def passes_on(routes: Routes, raw_path: bytes) -> tuple[bytes, str | None] | None:
    """Path at the worker and session id of a request that is proxied; None where it belongs to the router's routes."""
    parts = raw_path.split(b"/", 3)
    first = parts[1] if len(parts) > 1 else b""
    if _PERCENT in first:
        first = unquote_to_bytes(first)
    if first not in routes.claimed and raw_path not in routes.claimed_paths:
        return raw_path, None
    if first != b"sessions" or len(parts) < 4 or parts[3].split(b"/", 1)[0] in routes.session_nouns:
        return None
    path = b"/" + parts[3]
    if path.startswith(b"/v1/v1/"):
        path = path[3:]  # harnesses disagree whether a base URL ends in /v1; ours does
    return path, unquote_to_bytes(parts[2]).decode("utf-8", "replace")


class Front:
    """The innermost app. ``routes`` may be replaced: a request that has begun ends where it began."""

    def __init__(
        self,
        proxy: Proxy,
        routes: Routes,
        access: Access,
        *,
        start: Callable[[], Awaitable[None]],
        stop: Callable[[], Awaitable[None]],
    ) -> None:
        self.proxy = proxy
        self.routes = routes
        self.access = access
        self._turns: dict[bytes, tuple[bytes, str | None]] = {}
        """What `turn` gives for proxied paths that came before."""
        self.is_ours: Callable[[str | None, RawHeaders], bool] | None = None
        """Whether a proxied request is this process's own, by the session of its path and its fields; None: all are."""
        self._start = start
        self._stop = stop

    def replace_routes(self, routes: Routes) -> None:
        self.routes = routes
        self._turns = {}

    def turn(self, raw_path: bytes) -> tuple[bytes, str | None] | None:
        """Path at the worker and session id of a request that is proxied; None where it belongs to our routes."""
        turns = self._turns
        known = turns.get(raw_path)
        if known is not None:
            return known
        turn = passes_on(self.routes, raw_path)
        if turn is not None and len(raw_path) <= KEPT_PATH_BYTES:
            if len(turns) >= KEPT_PATHS:
                turns.clear()
            turns[raw_path] = turn
        return turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            routes = self.routes
            raw: bytes = scope["raw_path"]
            if (turn := self.turn(raw)) is not None:
                path, session_id = turn
                await self.proxy.serve(AsgiInbound(scope, receive, send, path), session_id)
            else:
                await self._own(routes, raw, scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _own(self, routes: Routes, raw: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        routes.in_use.enter()
        try:
            if (refusal := _refusal(self.access, scope, raw)) is not None:
                await _refuse(refusal, send)
                return
            if (address := self.access.data_address(scope)) is not None:
                scope[DATA_ADDRESS] = address
            await routes.app(scope, receive, _dated(send))
        finally:
            routes.in_use.leave()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                told = "lifespan.startup.complete"
                try:
                    await self._start()
                except Exception as error:  # who serves raises it
                    log.debug("the router did not start: %r", error, exc_info=error)
                    told = "lifespan.startup.failed"
                await send({"type": told})
                if told == "lifespan.startup.failed":
                    return
            elif message["type"] == "lifespan.shutdown":
                await self._stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _refusal(access: Access, scope: Scope, raw_path: bytes) -> Reject | None:
    try:
        access.check(scope, raw_path)
    except Reject as refusal:
        return refusal
    return None


async def _refuse(refusal: Reject, send: Send) -> None:
    answer = Answer.error(refusal)
    if refusal.status == 401:
        answer.headers.add("www-authenticate", "Bearer")
    send = _dated(send)
    await send({"type": "http.response.start", "status": answer.status, "headers": list(answer.headers.raw)})
    await send({"type": "http.response.body", "body": answer.ready_body or b""})


def _dated(send: Send) -> Send:
    """Gives the answers of our own routes their Date and Server."""

    async def dated(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": one_date_and_server(list(message.get("headers", ())))}
        await send(message)

    return dated


class Guard:
    """The outermost app, around every middleware.

    A middleware may turn a broken answer into a clean end (Starlette's BaseHTTPMiddleware does). Once an exchange is
    marked broken, the final message is dropped; the server then closes the connection, and the client knows.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        broken = Broken()
        scope[BROKEN] = broken

        def guarded(message: MutableMapping[str, Any]) -> Awaitable[None]:
            is_end = message["type"] == "http.response.body" and not message.get("more_body", False)
            return _nothing() if broken.is_broken and is_end else send(message)

        try:
            await self._app(scope, receive, guarded)
        except Exception as error:
            if not broken.is_broken:
                raise
            log.debug("a middleware raised over a broken answer: %r", error)


async def _nothing() -> None:
    """Sends no message."""
