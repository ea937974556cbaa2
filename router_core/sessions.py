"""The table of open sessions: who is open, closing or gone, and what each one binds to its turns."""

from __future__ import annotations

import asyncio
import hmac
import re
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from router_core.bodies import is_text
from router_core.clock import Clock
from router_core.deadline import within
from router_core.errors import Reject
from router_core.types import Exchange, Session

ID_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,256}\Z")
RESERVED_IDS = frozenset(("capabilities",))
MAX_VALUE_CHARACTERS = 1024
MAX_REMEMBERED = 10_000

BOUND_HEADERS = {
    "request_id": b"x-request-id",
    "prompt_id": b"x-prompt-id",
    "version_tag": b"x-version-tag",
    "is_validate": b"x-is-validate",
    "trajectory_id": b"x-smg-tito-trajectory-id",
    "is_sticky": b"x-is-sticky",
}
"""Key of ``POST /sessions`` -> the header that carries it to the worker on every turn."""
SESSION_ID_HEADER = b"x-smg-tito-session-id"
CORE_KEYS = frozenset(("session_id", "profile", "cache_salt", "secret", *BOUND_HEADERS))
"""Keys of ``POST /sessions`` that the core takes; others must be taken by a plugin."""
CACHE_SALT_KEYS = {"/generate": "extra_key", "/v1/chat/completions": "cache_salt", "/v1/completions": "cache_salt"}
"""Target -> the engine's own name for the cache salt (SGLang's native route has its own)."""


class SessionTable:
    """Open sessions by id. ``on_close`` is called once for each session that goes, with the reason."""

    def __init__(
        self, clock: Clock, *, max_sessions: int, ttl_s: float, on_close: Callable[[Session, str], None]
    ) -> None:
        self._clock = clock
        self._max_sessions = max_sessions
        self._ttl_s = ttl_s
        self._on_close = on_close
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._evicted: OrderedDict[str, str] = OrderedDict()
        self._idle: dict[Session, asyncio.Event] = {}
        self.on_open: Callable[[Session], object] = lambda session: None
        """Called once for each session that opens, before anybody hears of it."""
        self.new_id: Callable[[], str] = lambda: uuid.uuid4().hex
        """Makes the id of a session that names none."""
        self.on_end: Callable[[Session], object] = lambda session: None
        """Called once for each of these that is gone."""
        self.is_ours: Callable[[str], bool] = lambda session_id: True
        """Whether a session of this id is this process's to open."""

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def require(self, session_id: str) -> Session:
        """The open session. Raises Reject: 410 with the reason for an evicted one, 404 for one that never was."""
        session = self._sessions.get(session_id)
        if session is not None:
            return session
        if (reason := self._evicted.get(session_id)) is not None:
            raise _evicted(session_id, reason)
        raise Reject(404, "unknown_session", f"there is no session {session_id!r}", "session_id")

    # ------------------------------------------------------------------------------------------- opening and closing
    def prepare(self, body: Mapping[str, Any]) -> Session:
        """A session from the body of ``POST /sessions``, not open yet. Raises Reject (400, 409)."""
        session_id = body.get("session_id")
        if session_id is None:
            session_id = self.new_id()
        check_session_id(session_id)
        self._check_free(session_id)
        if not self.is_ours(session_id):
            message = f"session {session_id!r} belongs to another process: open it by POST /sessions"
            raise Reject(409, "session_elsewhere", message, "session_id")
        session = Session(session_id, opened_at=self._clock.now(), profile=_text(body, "profile"))
        session.bound_headers = _bound_headers(body)
        session.bound_headers.append((SESSION_ID_HEADER, session_id.encode()))
        session.cache_salt = _text(body, "cache_salt")
        session.secret = _text(body, "secret")
        return session

    def open(self, session: Session) -> None:
        """Puts a prepared session into the table. Raises Reject: 409 for an open id, 503 when the table is full."""
        self._check_free(session.id)
        if len(self._sessions) >= self._max_sessions and not self._evict_longest_idle():
            raise Reject(503, "too_many_sessions", "every open session is running (router.max_sessions)")
        self._evicted.pop(session.id, None)
        self._sessions[session.id] = session
        self.on_open(session)

    def _check_free(self, session_id: str) -> None:
        if session_id in self._sessions:
            raise Reject(409, "session_exists", f"session {session_id!r} is open already", "session_id")

    async def close(self, session: Session, *, timeout_s: float) -> int:
        """Refuses new turns, waits for the running ones up to a deadline, then cancels those that are left.

        Returns how many turns were cancelled. With a deadline of 0 the session is gone at once and its turns are cut.
        """
        session.closing = True
        for call in list(session.on_closing):
            call()
        if session.running and timeout_s > 0:
            idle = self._idle.setdefault(session, asyncio.Event())
            with suppress(TimeoutError):
                await within(timeout_s, idle.wait())
        return self._end(session, "deleted")

    def sweep(self) -> None:
        """Evicts sessions that had no turn for longer than the TTL."""
        oldest = self._clock.now() - self._ttl_s
        for session in self:
            if session.last_used_at > oldest:
                break
            if not session.running and not session.closing:
                self.evict(session, f"idle for {self._ttl_s:g} s (router.session_ttl_s)")

    def _evict_longest_idle(self) -> bool:
        for session in self._sessions.values():
            if not session.running and not session.closing:
                self.evict(session, "too many sessions were open (router.max_sessions)")
                return True
        return False

    def evict(self, session: Session, reason: str) -> None:
        """Closes a session for want of room: its turns are cut, and from now on it is 410 with this reason."""
        if self._sessions.get(session.id) is not session:
            return
        self._evicted[session.id] = reason
        if len(self._evicted) > MAX_REMEMBERED:
            self._evicted.popitem(last=False)
        self._end(session, reason)

    def _end(self, session: Session, reason: str) -> int:
        if (idle := self._idle.pop(session, None)) is not None:
            idle.set()  # somebody else closes it already: he need not wait any more
        if self._sessions.get(session.id) is not session:
            return 0
        del self._sessions[session.id]
        session.closing = True
        running = list(session.running)
        for exchange in running:
            exchange.interrupt(self._cut(session))
        self._on_close(session, reason)
        self.on_end(session)
        return len(running)

    def _cut(self, session: Session) -> Reject:
        if (reason := self._evicted.get(session.id)) is not None:
            return _evicted(session.id, reason)
        return Reject(409, "session_closed", f"session {session.id!r} was closed", "session_id")

    # -------------------------------------------------------------------------------------------------------- turns
    def enter(self, session: Session, exchange: Exchange) -> None:
        """A turn begins. Raises Reject: 409 while the session is closing, 401 without its secret."""
        if session.closing:
            raise Reject(409, "session_closing", f"session {session.id!r} is closing", "session_id")
        if session.secret is not None:
            given = (exchange.request.headers.get("authorization") or "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode("latin-1"), session.secret.encode()):
                message = f"session {session.id!r} needs its secret as the api key"
                raise Reject(401, "wrong_secret", message, "authorization")
            exchange.request.headers.remove("authorization")
        exchange.session = session
        session.running.add(exchange)
        self._touch(session)
        headers = exchange.request.headers
        bound = {name for name, _ in session.bound_headers}
        headers.raw[:] = [pair for pair in headers.raw if pair[0] not in bound] + session.bound_headers
        if session.cache_salt is not None and (key := CACHE_SALT_KEYS.get(exchange.target)) is not None:
            exchange.request.set_key(key, session.cache_salt)

    def leave(self, session: Session, exchange: Exchange) -> None:
        """A turn has ended, however."""
        session.running.discard(exchange)
        self._touch(session)
        if not session.running and (idle := self._idle.get(session)) is not None:
            idle.set()

    def _touch(self, session: Session) -> None:
        session.last_used_at = self._clock.now()
        if self._sessions.get(session.id) is session:
            self._sessions.move_to_end(session.id)


def _evicted(session_id: str, reason: str) -> Reject:
    return Reject(410, "session_evicted", f"session {session_id!r} was evicted: {reason}", "session_id")


def check_session_id(session_id: object) -> None:
    """Raises Reject (400) for what cannot name a session."""
    if not isinstance(session_id, str) or not ID_PATTERN.match(session_id):
        raise Reject(400, "bad_session_id", "a session id is 1 to 256 of A-Z a-z 0-9 . _ : -", "session_id")
    if session_id in RESERVED_IDS:
        raise Reject(400, "bad_session_id", f"{session_id!r} is reserved", "session_id")


def _text(body: Mapping[str, Any], key: str) -> str | None:
    value: Any = body.get(key)
    if value is None:
        return None
    if not is_text(value) or not 0 < len(value) <= MAX_VALUE_CHARACTERS:
        raise Reject(400, "bad_value", f"{key} must be a text of 1 to {MAX_VALUE_CHARACTERS} characters", key)
    return str(value)


def _bound_headers(body: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    bound = []
    for key, header in BOUND_HEADERS.items():
        value = body.get(key)
        if value is None:
            continue
        if isinstance(value, bool):
            value = "true" if value else "false"
        text = str(value) if isinstance(value, int) else value
        if (
            not isinstance(text, str)
            or not 0 < len(text) <= MAX_VALUE_CHARACTERS
            or not text.isascii()
            or not text.isprintable()
            or text != text.strip()
        ):
            raise Reject(
                400, "bad_value", f"{key} must be printable ASCII of 1 to {MAX_VALUE_CHARACTERS} characters", key
            )
        bound.append((header, text.encode()))
    return bound
