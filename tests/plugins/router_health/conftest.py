"""What the health tests share: a plugin that tells when a worker's state changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from router_core import Worker, WorkerState, hookimpl
from router_core.testing.pytest_plugin import scripted_worker, scripted_workers  # noqa: F401  # fixtures


class Changes:
    """Every change of a worker's state, as ``(url, new state)``; ``plugin`` is the class to give to the router."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, WorkerState]] = []
        self.workers: dict[str, Worker] = {}
        self._arrived = asyncio.Event()
        changes = self

        class Recorder:
            @hookimpl
            def worker_changed(self, worker: Worker, new: WorkerState) -> None:
                changes.seen.append((worker.url, new))
                changes.workers[worker.url] = worker
                changes._arrived.set()

        self.plugin = Recorder

    async def wait(self, is_true: Callable[[], bool], timeout_s: float = 10.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not is_true():
                self._arrived.clear()
                await self._arrived.wait()

    async def wait_for(self, url: str, state: WorkerState, timeout_s: float = 10.0) -> Worker:
        await self.wait(lambda: url in self.workers and self.workers[url].state is state, timeout_s)
        return self.workers[url]


@pytest.fixture
async def changes() -> Changes:
    return Changes()
