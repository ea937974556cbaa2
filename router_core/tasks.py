"""Background tasks: every one is made here, held, bounded, cancelled and awaited at shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("router_core")


class Tasks:
    """Holds running tasks, at most ``max_tasks`` of them.

    >>> tasks = Tasks(max_tasks=100)
    >>> tasks.spawn(work(), name="probe w1")
    """

    def __init__(self, max_tasks: int) -> None:
        self.max_tasks = max_tasks
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Starts ``work`` in the background; a raise is logged under ``name``.

        Raises RuntimeError when the bound is reached; the coroutine is closed unstarted.
        """
        if len(self._running) >= self.max_tasks:
            work.close()
            raise RuntimeError(f"{name!r} is not started: {self.max_tasks} background tasks are running")
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task %r failed: %r", task.get_name(), error, exc_info=error)

    async def finish(self, timeout_s: float) -> None:
        """Waits for what runs, then cancels the rest and waits for that too."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=timeout_s)
        await self.cancel()

    async def cancel(self) -> None:
        """Cancels everything and waits until it has ended."""
        running = set(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
