"""The version that first served each session: later turns go to none older."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True)
class _Tag:
    version: int
    claimant: str | None
    """The exchange that is on its way to a worker of this version; None once one was served."""
    used_at: float


class SessionTags:
    """Session id -> version, the longest unused first out. Bounded in number and in idle time."""

    def __init__(self, *, max_sessions: int, ttl_s: float) -> None:
        self._max_sessions = max_sessions
        self._ttl_s = ttl_s
        self._tags: OrderedDict[str, _Tag] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tags)

    def get(self, session_id: str, now: float) -> int | None:
        """The session's version, also while it is only claimed."""
        tag = self._tags.get(session_id)
        if tag is None:
            return None
        if now - tag.used_at > self._ttl_s:
            del self._tags[session_id]
            return None
        return tag.version

    def claim(self, session_id: str, claimant: str, version: int, now: float) -> None:
        """An exchange is sent to a worker of ``version``: nothing older for the session's other turns meanwhile."""
        if session_id not in self._tags:
            self._tags[session_id] = _Tag(version, claimant, now)
            self._drop_old(now)

    def serve(self, session_id: str, version: int, now: float) -> int:
        """A worker of ``version`` served the session; returns the version that did so first."""
        tag = self._tags.get(session_id)
        if tag is None:
            tag = self._tags[session_id] = _Tag(version, None, now)
            self._drop_old(now)
        elif tag.claimant is not None:
            tag.version, tag.claimant = version, None
        tag.used_at = now
        self._tags.move_to_end(session_id)
        return tag.version

    def unclaim(self, session_id: str, claimant: str) -> None:
        """The exchange ended: its claim is void if it was not served."""
        tag = self._tags.get(session_id)
        if tag is not None and tag.claimant == claimant:
            del self._tags[session_id]

    def forget(self, session_id: str) -> None:
        self._tags.pop(session_id, None)

    def _drop_old(self, now: float) -> None:
        while len(self._tags) > self._max_sessions:
            self._tags.popitem(last=False)
        while self._tags and now - next(iter(self._tags.values())).used_at > self._ttl_s:
            self._tags.popitem(last=False)
