"""A clock that stands until a test turns it."""

import asyncio
import heapq
import itertools

from router_core.clock import Clock


class TurnedClock(Clock):
    """Give it to ``running_router(clock=...)``; ``await clock.turn(seconds)`` lets time pass and sleepers wake."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._serial = itertools.count()

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        waking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._serial), waking))
        await waking

    async def turn(self, seconds: float) -> None:
        """Passes time, one sleeper after the other; each runs until it waits again for something."""
        end = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            self._now, _, waking = heapq.heappop(self._sleepers)
            if not waking.done():
                waking.set_result(None)
                for _ in range(10):
                    await asyncio.sleep(0)
        self._now = end
