"""A router whose ends are watched: whatever a test did to it, nothing may be in flight afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from router_core import Exchange, Outcome, Worker, hookimpl
from router_core.testing import ScriptedWorker
from router_core.testing.router import RunningRouter, running_router
from router_core.testing.wire import Signal

WAIT_S = 10.0


class Ends:
    """Every `response_end` of a router, in order, and what was in flight at that moment."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.outcomes: list[Outcome] = []
        self.inflight: list[int] = []
        self._signal = Signal()

    def plugin(self) -> type[Any]:
        ends = self

        class Ends:
            @hookimpl
            def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
                ends.exchanges.append(exchange)
                ends.outcomes.append(outcome)
                ends.inflight.append(sum(attempt.worker.inflight for attempt in exchange.attempts))
                ends._signal.notify()

        return Ends

    async def wait(self, count: int = 1) -> list[Outcome]:
        """Until so many exchanges have ended."""
        async with asyncio.timeout(WAIT_S):
            await self._signal.wait_until(lambda: len(self.outcomes) >= count)
        return self.outcomes

    @property
    def kinds(self) -> list[str]:
        return [str(outcome.kind) for outcome in self.outcomes]


class Served(RunningRouter):
    """A running router and its ends."""

    def __init__(self, running: RunningRouter, ends: Ends) -> None:
        super().__init__(running.application, running.url, running.port)
        self.ends = ends

    @property
    def workers(self) -> list[Worker]:
        return list(self.application.workers)

    async def settle(self) -> None:
        """Until nothing runs; then nothing may be counted as running either, and each exchange ended exactly once."""
        running = self.application.proxy.running
        async with asyncio.timeout(WAIT_S):
            while running:
                await self.ends.wait(len(self.ends.outcomes) + 1)
        assert [worker.inflight for worker in self.workers] == [0] * len(self.workers)
        assert len({id(exchange) for exchange in self.ends.exchanges}) == len(self.ends.exchanges)
        for exchange in self.ends.exchanges:
            assert exchange.ended_at is not None
            assert exchange.session is None or exchange not in exchange.session.running
            for attempt in exchange.attempts:
                assert attempt.outcome is not None
                assert attempt.worker.inflight == 0
        for session in self.application.sessions:
            assert session.inflight == 0


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts routers: ``router = await serve(worker, plugins=..., classes=[...])``; `enabled` is empty unless given."""
    loop = asyncio.get_running_loop()
    faults: list[str] = []
    loop.set_exception_handler(lambda _, context: faults.append(repr(context)))
    async with contextlib.AsyncExitStack() as stack:
        started: list[Served] = []

        async def start(*workers: ScriptedWorker | str, classes: tuple[type[Any], ...] = (), **options: Any) -> Served:
            ends = Ends()
            urls = [worker if isinstance(worker, str) else worker.url for worker in workers]
            running = await stack.enter_async_context(
                running_router(urls, classes=[*classes, ends.plugin()], **{"enabled": (), **options})
            )
            started.append(Served(running, ends))
            return started[-1]

        yield start
        for served in started:
            await served.settle()
    assert not faults
