"""Counts the failures of a plugin that says ``on_error = "skip"``, and says when it has failed too often."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable


class Breaker:
    """Trips, once and for good, at ``max_failures`` within ``window_s`` seconds."""

    def __init__(self, max_failures: int, window_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._now = now
        self._failed_at: deque[float] = deque(maxlen=max_failures)
        self.is_tripped = False

    def fail(self) -> bool:
        """Counts a failure; True for the one that trips it."""
        now = self._now()
        self._failed_at.append(now)
        is_full = len(self._failed_at) == self._failed_at.maxlen
        if self.is_tripped or not is_full or now - self._failed_at[0] > self._window_s:
            return False
        self.is_tripped = True
        return True
