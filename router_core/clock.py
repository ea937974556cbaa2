"""Time, behind one door, so that tests can turn the clock."""

from __future__ import annotations

import asyncio
import time


class Clock:
    """The real clock. ``now()`` is monotonic seconds; ``sleep`` suspends the caller."""

    now = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
