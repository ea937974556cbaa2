"""Holds: what a running request uses stays in the tree."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from router_radix_cache.trajectory import Trajectory


class Hold:
    """Keeps a trajectory in the tree while a request uses it, until ``release`` or the end of a ``with`` block."""

    __slots__ = ("_on_release", "_trajectory")

    def __init__(self, trajectory: Trajectory | None, on_release: Callable[[Trajectory], None]) -> None:
        self._trajectory = trajectory
        self._on_release = on_release
        if trajectory is not None:
            trajectory.holds += 1

    def release(self) -> None:
        """Let the trajectory be evicted again; a second call does nothing."""
        trajectory, self._trajectory = self._trajectory, None
        if trajectory is not None:
            trajectory.holds -= 1
            self._on_release(trajectory)

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
