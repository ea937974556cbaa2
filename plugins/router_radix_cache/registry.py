"""Stored trajectories by rid and by session."""

from __future__ import annotations

from collections.abc import Iterator

from router_radix_cache.trajectory import Trajectory


class Registry:
    """Every stored trajectory, oldest first. A rid names the trajectory that was last stored under it."""

    def __init__(self) -> None:
        self._all: dict[Trajectory, None] = {}
        self._rids: dict[str, Trajectory] = {}
        self._sessions: dict[str, dict[Trajectory, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self._all)

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    def add(self, trajectory: Trajectory) -> None:
        self._all[trajectory] = None
        if trajectory.rid is not None:
            self._rids[trajectory.rid] = trajectory
        if trajectory.session_id is not None:
            self._sessions.setdefault(trajectory.session_id, {})[trajectory] = None

    def discard(self, trajectory: Trajectory) -> None:
        del self._all[trajectory]
        if trajectory.rid is not None and self._rids.get(trajectory.rid) is trajectory:
            del self._rids[trajectory.rid]
        if trajectory.session_id is not None:
            session = self._sessions[trajectory.session_id]
            del session[trajectory]
            if not session:
                del self._sessions[trajectory.session_id]

    def by_rid(self, rid: str) -> Trajectory | None:
        return self._rids.get(rid)

    def newest_first(self, rid: str | None, session_id: str | None) -> list[Trajectory]:
        """Those of a rid, of a session, or the one of a rid if it is of that session."""
        if rid is None:
            return list(reversed(self._sessions.get(session_id or "", ())))
        trajectory = self._rids.get(rid)
        return [trajectory] if trajectory is not None and session_id in (None, trajectory.session_id) else []
