"""What is known of each session, and which of them hang. Knows no HTTP and no clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

W = TypeVar("W")
GENERATE, ENV, HUNG = "generate", "env", "hung"
STATUSES = (GENERATE, ENV, HUNG)


@dataclass(slots=True)
class SessionRecord(Generic[W]):
    """One agent run. Times are clock seconds."""

    id: str
    seen_at: float
    """When its newest turn began or ended."""
    running: set[str] = field(default_factory=set)
    """Turns that are at a worker, or on their way there."""
    waiting: set[str] = field(default_factory=set)
    """Turns that wait because the session hangs."""
    turns: int = 0
    total_tokens: int = 0
    """Prompt and answer of the newest turn: what the session occupies when it runs."""
    completion_tokens: int = 0
    """Of all turns."""
    worker: W | None = None
    """Who served the newest turn."""
    hung_until: float | None = None
    hung_at: float | None = None
    goes_to: W | None = None
    """Where its next turn goes, and then nothing more is said about that."""

    @property
    def is_hung(self) -> bool:
        return self.hung_until is not None

    @property
    def status(self) -> str:
        """``generate``: a turn runs. ``hung``: none does, and none will. ``env``: the agent is at its own work."""
        if self.running:
            return GENERATE
        return HUNG if self.is_hung else ENV

    @property
    def is_in_use(self) -> bool:
        return bool(self.running or self.waiting) or self.is_hung


class Sessions(Generic[W]):
    """At most ``max_sessions`` records; the one unused longest, of those not in use, goes first."""

    def __init__(self, *, max_sessions: int, ttl_s: float) -> None:
        self._max_sessions = max_sessions
        self._ttl_s = ttl_s
        self._records: OrderedDict[str, SessionRecord[W]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[SessionRecord[W]]:
        return iter(list(self._records.values()))

    def get(self, session_id: str) -> SessionRecord[W] | None:
        return self._records.get(session_id)

    def see(self, session_id: str, now: float) -> SessionRecord[W]:
        """The session's record, made if there is none; it is in use now."""
        record = self._records.get(session_id)
        if record is None:
            record = self._records[session_id] = SessionRecord(session_id, now)
            self._make_room(now)
        record.seen_at = now
        self._records.move_to_end(session_id)
        return record

    def forget(self, session_id: str) -> None:
        self._records.pop(session_id, None)

    def _make_room(self, now: float) -> None:
        """What was idle for too long goes, and what is too much."""
        for record in list(self._records.values()):
            is_old = now - record.seen_at > self._ttl_s
            if not is_old and len(self._records) <= self._max_sessions:
                return
            if not record.is_in_use:
                del self._records[record.id]
