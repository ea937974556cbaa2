"""A router whose ends are watched: whatever a test did to it, nothing may be in flight afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from router_core import Exchange, Outcome, Worker, hookimpl
from router_core.testing import ScriptedWorker
from router_core.testing.router import RunningRouter, running_router
from router_core.testing.wire import Signal

WAIT_S = 30.0


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
        super().__init__(running.application, running.listeners)
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


class Process:
    """A ``router-core serve`` of its own: ``port``, ``pid``, ``stop()`` and what it wrote to standard error."""

    def __init__(self, process: asyncio.subprocess.Process, ready: dict[str, Any]) -> None:
        self._process = process
        self.ready = ready
        self.port = int(ready["port"])
        self.pid = process.pid

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def wait(self) -> tuple[int, str]:
        """The exit status, and what was logged."""
        async with asyncio.timeout(WAIT_S):
            _, told = await self._process.communicate()
        return self._process.returncode or 0, told.decode()


Start = Callable[..., Awaitable[Process]]


async def run_command(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> asyncio.subprocess.Process:
    clean = {name: value for name, value in os.environ.items() if not name.upper().startswith("ROUTER__")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "router_core",
        *arguments,
        cwd=cwd,
        env={**clean, **(env or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.fixture
async def start_process(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts ``router-core serve --port 0`` with more arguments in a directory of its own; waits until it serves."""
    started: list[asyncio.subprocess.Process] = []

    async def start(*arguments: str, env: dict[str, str] | None = None) -> Process:
        ready_file = tmp_path / f"ready-{len(started)}.json"
        arguments = ("serve", "--port", "0", "--ready-file", str(ready_file), *arguments)
        process = await run_command(*arguments, cwd=tmp_path, env=env)
        started.append(process)
        async with asyncio.timeout(WAIT_S):
            while not ready_file.exists():
                if process.returncode is not None:
                    raise RuntimeError((await process.communicate())[1].decode())
                await asyncio.sleep(0.01)
        return Process(process, json.loads(ready_file.read_text()))

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., Awaitable[tuple[int, str, str]]]:
    """Runs ``router-core`` to its end in a directory of its own: exit status, standard output, standard error."""

    async def run(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
        process = await run_command(*arguments, cwd=tmp_path, env=env)
        async with asyncio.timeout(WAIT_S):
            out, told = await process.communicate()
        return process.returncode or 0, out.decode(), told.decode()

    return run
