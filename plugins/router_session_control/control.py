"""Hanging and continuing sessions: the calls that coordinators and other plugins make."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from router_core import Exchange, Reject, Router, Worker
from router_session_control.sessions import SessionRecord, Sessions

KIND = "hung"
Record = SessionRecord[Worker]


class SessionController:
    """Found by other plugins as ``router.session_control``, once the router has started."""

    def __init__(self, router: Router, *, max_sessions: int, session_ttl_s: float) -> None:
        self._router = router
        self.sessions: Sessions[Worker] = Sessions(max_sessions=max_sessions, ttl_s=session_ttl_s)
        self.hangs = 0
        self.ended_by_ttl = 0
        self._is_hung = asyncio.Event()

    def find(self, session_id: str) -> Record:
        """The record of a session that was seen or is open. Raises Reject (404)."""
        record = self.known(session_id)
        if record is None:
            raise Reject(404, "unknown_session", f"no session {session_id!r} was seen", "session_id")
        return record

    def known(self, session_id: str) -> Record | None:
        """The same, or None."""
        record = self.sessions.get(session_id)
        if record is None and self._router.session(session_id) is not None:
            record = self.sessions.see(session_id, self._router.clock.now())
        return record

    def hang(self, records: Iterable[Record], ttl_s: float) -> None:
        """From its next turn on each of them waits; a turn that runs is not touched. Again: with a new TTL."""
        now = self._router.clock.now()
        for record in records:
            if not record.is_hung:
                record.hung_at = now
                self.hangs += 1
            record.hung_until = now + ttl_s
            record.goes_to = None
        self._is_hung.set()

    def resume(self, records: Iterable[Record], worker: Worker | None = None) -> int:
        """Lets them go on, at ``worker`` if it is given; says how many had hung."""
        hung = 0
        for record in records:
            hung += record.is_hung
            record.goes_to = worker
            self._let_go(record)
        return hung

    def _let_go(self, record: Record) -> None:
        record.hung_until = record.hung_at = None
        self._router.holds.wake((KIND, record.id))

    async def wait(self, record: Record, exchange: Exchange) -> None:
        """A turn begins: until its session does not hang. Raises Reject, 409 when the session is deleted meanwhile."""
        session, lane = exchange.session, (KIND, record.id)

        def wake() -> None:
            self._router.holds.wake(lane)

        if not record.is_hung:
            return
        record.waiting.add(exchange.id)
        if session is not None:
            session.on_closing.add(wake)
        try:
            while (until := record.hung_until) is not None:
                if session is not None and session.closing:
                    raise Reject(409, "session_closing", f"session {record.id!r} is closing", "session_id")
                # the lease ends the wait; this is a bound for the case that nothing does
                left_s = until - self._router.clock.now()
                limit_s = exchange.held_s + max(0.0, left_s) + 60.0
                await self._router.holds.hold(exchange, KIND, lane=lane, reason="its session hangs", timeout_s=limit_s)
        finally:
            record.waiting.discard(exchange.id)
            if session is not None:
                session.on_closing.discard(wake)

    async def end_leases(self) -> None:
        """Lets each session go whose TTL is over, for ever."""
        while True:
            self._is_hung.clear()
            ends = [record.hung_until for record in self.sessions if record.hung_until is not None]
            now = self._router.clock.now()
            try:
                async with asyncio.timeout(max(0.0, min(ends) - now) if ends else None):
                    await self._is_hung.wait()
            except TimeoutError:
                now = self._router.clock.now()
                for record in self.sessions:
                    if record.hung_until is not None and record.hung_until <= now:
                        self.ended_by_ttl += 1
                        self._let_go(record)
