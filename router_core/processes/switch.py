"""The outermost app of each process: what is another one's goes there, what is everybody's goes to all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from router_core.asgi import ASGIApp, Front, Receive, Scope, Send
from router_core.errors import Reject
from router_core.headers import RawHeaders
from router_core.processes.first_bytes import SessionFields, id_in
from router_core.processes.forward import Forwarder, answer
from router_core.processes.frames import sent_scope
from router_core.processes.merge import Merge, first_error, merge_plugins, merge_sessions, merge_workers
from router_core.processes.messages import RouteAnswer, RouteCall
from router_core.processes.ownership import Owners
from router_core.sessions import RESERVED_IDS

MAX_BODY_BYTES = 16 << 20
"""Longest body of a route that all processes run, or that opens a session."""
WORKER_ROUTES = (b"workers", b"add_worker", b"remove_worker")
READS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Everywhere:
    """All processes run it; ``merge`` makes one answer of theirs, else each says the same."""

    merge: Merge | None = None


@dataclass(frozen=True, slots=True)
class OfSession:
    """The owner of this session serves it."""

    id: str


@dataclass(frozen=True, slots=True)
class Opening:
    """``POST /sessions``: the body may name the id."""


Place = OfSession | Opening | Everywhere | None
"""Where a request is served; None: here."""


class Switch:
    """Around the app of one process. ``ask`` has a call run in all of them, and gives the answers by slot."""

    def __init__(
        self,
        app: ASGIApp,
        front: Front,
        owners: Owners,
        forwarder: Forwarder,
        *,
        session_headers: Sequence[str],
        ask: Callable[[Any], Awaitable[Mapping[int, Any]]],
        before_listening: Callable[[], Awaitable[None]],
        lost: Mapping[str, str],
    ) -> None:
        self._app = app
        self._front = front
        self._owners = owners
        self._forwarder = forwarder
        self._fields = SessionFields(session_headers)
        self._ask = ask
        self._before_listening = before_listening
        self.lost = dict(lost)
        """Sessions that were lost with a predecessor of this process -> how."""
        front.is_ours = self._is_ours

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await self._http(scope, receive, send)

    # ------------------------------------------------------------------------------------------------------ switching
    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        place = self._place(scope)
        if place is None:
            await self._app(scope, receive, send)
        elif isinstance(place, Everywhere):
            await self._everywhere(place, scope, receive, send)
        elif isinstance(place, Opening):
            await self._open(scope, receive, send)
        else:
            await self._to_owner(place.id, scope, receive, send)

    def _place(self, scope: Scope) -> Place:
        raw: bytes = scope["raw_path"]
        parts = raw.split(b"/", 3)
        first = unquote_to_bytes(parts[1]) if len(parts) > 1 else b""
        routes = self._front.routes
        if first not in routes.claimed and raw not in routes.claimed_paths:
            return self._session_in_headers(scope)
        if first == b"sessions":
            return self._session_in_path(scope, parts)
        if first in WORKER_ROUTES and not routes.is_of_plugin(scope):
            if scope["method"] not in READS:
                return Everywhere()
            return Everywhere(merge_workers) if first == b"workers" and raw != b"/workers/stats" else None
        if scope["method"] in READS:
            return {b"/plugins": Everywhere(merge_plugins), b"/readiness": Everywhere()}.get(raw)
        return None

    def _is_ours(self, session_id: str | None, headers: RawHeaders) -> bool:
        """Whether a proxied request may be served here without a look at its place."""
        if session_id is None and (session_id := self._fields.named_by(headers)) is None:
            return True
        return self._owners.is_ours(session_id) and session_id not in self.lost

    def _session_in_headers(self, scope: Scope) -> Place:
        session_id = self._fields.named_by(scope["headers"])
        return None if session_id is None else OfSession(session_id)

    def other_owner(self, data: bytes) -> int | None:
        """The other process to which a request belongs that begins with these bytes, if one is there to take it."""
        session_id = self._fields.session_of(data)
        if session_id is None or (slot := self._owners.slot_of(session_id)) == self._owners.slot:
            return None
        return slot if self._forwarder.is_there(slot) else None

    @staticmethod
    def _session_in_path(scope: Scope, parts: Sequence[bytes]) -> Place:
        if len(parts) == 2:
            if scope["method"] in READS:
                return Everywhere(merge_sessions)
            return Opening() if scope["method"] == "POST" else None
        session_id = unquote_to_bytes(parts[2]).decode("utf-8", "replace")
        return None if session_id in RESERVED_IDS else OfSession(session_id)

    # ---------------------------------------------------------------------------------------------------- one session
    async def from_peer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request that another process handed over is served here: one hop, and no other."""
        place = self._place(scope)
        if isinstance(place, OfSession):
            await self._here(place.id, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _to_owner(self, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        slot = self._owners.slot_of(session_id)
        if slot == self._owners.slot:
            await self._here(session_id, scope, receive, send)
        else:
            await self._forwarder.forward(scope, receive, send, slot)

    async def _here(self, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        if (how := self.lost.get(session_id)) is not None:
            await answer(Reject(410, "session_lost", f"session {session_id!r} was lost: {how}", "session_id"), send)
        else:
            await self._app(scope, receive, send)

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        """``POST /sessions``: the owner of the id that the body names opens it; else an id of ours is made."""
        try:
            body = await _whole_body(receive)
        except Reject as refusal:
            await answer(refusal, send)
            return
        if body is None:
            return
        replay = _Replay(body, receive)
        session_id = id_in(body)
        slot = self._owners.slot if session_id is None else self._owners.slot_of(session_id)
        if slot == self._owners.slot:
            await self._app(scope, replay, send)
        else:
            await self._forwarder.forward(scope, replay, send, slot)

    # ------------------------------------------------------------------------------------------------------ all of them
    async def _everywhere(self, place: Everywhere, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await _whole_body(receive)
        except Reject as refusal:
            await answer(refusal, send)
            return
        if body is None:
            return
        answers = await self._ask(RouteCall(sent_scope(scope), body))
        said = [answers[slot] for slot in sorted(answers)]
        chosen = first_error(said)
        if chosen is None:
            chosen = (
                answers[self._owners.slot] if place.merge is None or scope["method"] == "HEAD" else place.merge(said)
            )
        await send({"type": "http.response.start", "status": chosen.status, "headers": chosen.headers})
        await send({"type": "http.response.body", "body": chosen.body})

    async def run(self, call: RouteCall) -> RouteAnswer:
        """This process's answer to a call that all of them run."""
        status, headers, parts = 500, [], []

        async def take(message: Any) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message.get("headers", ()))
            else:
                parts.append(message.get("body", b""))

        await self._app(dict(call.scope), _Replay(call.body, None), take)
        return RouteAnswer(status, headers, b"".join(parts))

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def passed(message: Any) -> None:
            if message["type"] == "lifespan.startup.complete":
                await self._before_listening()
            await send(message)

        await self._app(scope, receive, passed)


class _Replay:
    """A request's body that was read already."""

    def __init__(self, body: bytes, receive: Receive | None) -> None:
        self._message: dict[str, Any] | None = {"type": "http.request", "body": body, "more_body": False}
        self._receive = receive

    async def __call__(self) -> Any:
        message, self._message = self._message, None
        if message is not None:
            return message
        if self._receive is None:
            return await asyncio.get_running_loop().create_future()  # nobody leaves
        return await self._receive()


async def _whole_body(receive: Receive) -> bytes | None:
    """The body; None where the client left. Raises Reject (413)."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise Reject(413, "body_too_large", f"the body is longer than {MAX_BODY_BYTES} bytes")
        if not message.get("more_body", False):
            return b"".join(parts)
