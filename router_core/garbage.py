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

THRESHOLDS = (10_000, 100, 20)
"""Of new objects a look is over at most so many: it holds the loop for 1 to 3 ms. A few hundred requests at once come
and go below that."""
LOOK_S = 1.0
FEW = 100
"""Exchanges whose objects are soon looked through."""

KEPT_BYTES = 16 * 1024 * 1024
"""Freed memory that stays with the process."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BYTES = 1024 * 1024
"""From this size on a piece of memory is asked for, and given back, by itself."""


def keep_freed_memory() -> None:
    """Has glibc keep some: given back after each answer of some size, it is had again page by page, 5 % of its cost."""
    try:
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
    except (ImportError, OSError, AttributeError, TypeError):  # another C library
        return
    mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)  # by itself it would stay where it is once the other one is set
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


class Collector:
    """Python's collector in a process that is this router alone."""

    def __init__(self, running: Sized) -> None:
        self._running = running
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """What lives now lives until the end, and need not be looked at again and again."""
        keep_freed_memory()
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
