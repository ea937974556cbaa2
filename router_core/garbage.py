"""When Python's collector looks at what: never at thousands of requests that are under way, if it can be helped.

Exchanges make no cycles of their own, so it may look less often than Python has it. A look at all that is young takes
0.3 µs an object, and a request under way is a hundred: 4,000 of them held the loop for an eighth of a second. So the
objects that one look has passed over are looked at again when little runs, which is soon done, or once there are a
million of them.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sized

THRESHOLDS = (20_000, 50, 20)
LOOK_S = 1.0
FEW = 100
"""Exchanges whose objects are soon looked through."""


class Collector:
    """Python's collector in a process that is this router alone."""

    def __init__(self, running: Sized) -> None:
        self._running = running
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """What lives now lives until the end, and need not be looked at again and again."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        self._look_soon()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_soon(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self.look()
        self._look_soon()

    def look(self) -> None:
        """Looks at what has been passed over once, if little runs."""
        if gc.get_count()[1] and len(self._running) < FEW:
            gc.collect(1)
