"""How many requests use something, and when nobody does any more."""

from __future__ import annotations

import asyncio


class InUse:
    """A count that can be waited for. Not to be entered again once it is left for good."""

    __slots__ = ("_idle", "count")

    def __init__(self) -> None:
        self.count = 0
        self._idle: asyncio.Event | None = None

    def enter(self) -> None:
        self.count += 1

    def leave(self) -> None:
        self.count -= 1
        if not self.count and self._idle is not None:
            self._idle.set()

    async def until_idle(self) -> None:
        """Until nobody uses it; at once if nobody does."""
        while self.count:
            self._idle = asyncio.Event()
            await self._idle.wait()
