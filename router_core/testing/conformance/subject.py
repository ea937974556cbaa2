"""The plugin on trial, and the bench it is tried on: a scripted worker, a router with the plugin, and who watches."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from router_core import Exchange, Outcome, PluginSettings, Worker, hookimpl
from router_core.testing.answer import RawAnswer
from router_core.testing.client import exchange_once
from router_core.testing.engines import EngineName
from router_core.testing.http1 import Fields
from router_core.testing.router import RunningRouter, running_router
from router_core.testing.wire import Signal
from router_core.testing.worker import ScriptedWorker

SETTLE_S = 5.0
"""Seconds that an exchange, and what a plugin started for it, get to end."""


class Nonconformance(AssertionError):
    """One sentence about what the plugin did that no plugin may do."""


@dataclass(frozen=True)
class Subject:
    """A plugin by its class, with what it needs around it."""

    name: str
    cls: type[Any]
    is_installed: bool
    settings: Mapping[str, Any]
    beside: tuple[str, ...]
    plugins: Mapping[str, Mapping[str, Any]]
    engine: EngineName
    session: Mapping[str, Any]
    keeps: frozenset[str]
    changes_everything: bool

    @property
    def model(self) -> type[PluginSettings]:
        """The model of its settings."""
        return getattr(self.cls, "Settings", PluginSettings)

    def implements(self, hook: str) -> bool:
        return hasattr(self.cls, hook)

    @asynccontextmanager
    async def bench(self, *, on: bool = True, router: Mapping[str, Any] | None = None) -> AsyncIterator[Bench]:
        """A worker and a router with the plugin; without ``on`` only with what stands beside it."""
        ends = Ends()
        enabled = [*self.beside, *([self.name] if on and self.is_installed else [])]
        classes = [*([self.cls] if on and not self.is_installed else []), ends.plugin()]
        tables = {**self.plugins, **({self.name: self.settings} if on else {})}
        async with (
            ScriptedWorker(self.engine) as worker,
            running_router([worker.url], enabled=enabled, classes=classes, plugins=tables, router=router) as running,
        ):
            yield Bench(self, worker, running, ends)


def subject_of(plugin: type[Any] | str) -> tuple[str, type[Any], bool]:
    """Name, class, and whether it is installed, of a class or of an installed plugin's name."""
    points = entry_points(group="router_core.plugins")
    if isinstance(plugin, str):
        found = next((point for point in points if point.name == plugin), None)
        if found is None:
            raise ValueError(f"no installed distribution offers a plugin {plugin!r}")
        return plugin, found.load(), True
    for point in points:
        if point.value.partition(":")[::2] == (plugin.__module__, plugin.__qualname__):
            return point.name, plugin, True
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", plugin.__name__).lower()
    return str(getattr(plugin, "name", snake)), plugin, False


class Ends:
    """Every `response_end` of a router, with what was in flight at that moment."""

    def __init__(self) -> None:
        self.outcomes: dict[str, list[Outcome]] = {}
        self.inflight: dict[str, int] = {}
        self.signal = Signal()

    def __len__(self) -> int:
        return len(self.outcomes)

    def plugin(self) -> type[Any]:
        ends = self

        class ConformanceEnds:
            @hookimpl
            def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
                ends.outcomes.setdefault(exchange.id, []).append(outcome)
                ends.inflight[exchange.id] = sum(attempt.worker.inflight for attempt in exchange.attempts)
                ends.signal.notify()

        return ConformanceEnds


@dataclass
class Bench:
    """One router on trial."""

    subject: Subject
    worker: ScriptedWorker
    running: RunningRouter
    ends: Ends
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def port(self) -> int:
        return self.running.port

    @property
    def name(self) -> str:
        return self.subject.name

    async def ask(
        self,
        target: str = "/generate",
        headers: Fields = (),
        *,
        method: str = "POST",
        body: bytes = b"",
        json: object = None,
    ) -> RawAnswer:
        """One request on a connection of its own; it must be answered in time."""
        try:
            return await exchange_once(self.port, method, target, headers, body, json=json)
        except TimeoutError:
            raise Nonconformance(f"a request for {target} with {self.name} on got no answer in time") from None

    def watch(self, wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
        """Has the plugin's own hooks called through ``wrap(hook, call)``."""

        def of_subject(plugin: Any, hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
            return wrap(hook, call) if plugin.name == self.name else call

        self.running.application.plans.watch_hooks(of_subject)

    async def settle(self, exchanges: int, what: str) -> None:
        """Until so many exchanges have ended, each once, with nothing in flight."""
        try:
            async with asyncio.timeout(SETTLE_S):
                await self.ends.signal.wait_until(lambda: len(self.ends) >= exchanges)
        except TimeoutError:
            missing = exchanges - len(self.ends)
            raise Nonconformance(f"{what}: {missing} of {exchanges} exchanges did not end") from None
        for outcomes in self.ends.outcomes.values():
            if len(outcomes) != 1:
                raise Nonconformance(f"{what}: response_end ran {len(outcomes)} times for one exchange, not once")
        if busy := [worker for worker in self.running.router.workers if worker.inflight]:
            raise Nonconformance(f"{what}: {busy[0].inflight} requests stay counted as in flight at {busy[0].url}")
        if running := self.running.router.exchanges:
            raise Nonconformance(f"{what}: {len(running)} exchanges are listed as running after their end")

    def check_errors(self, what: str) -> None:
        """Raises Nonconformance when a hook of the plugin failed."""
        for (plugin, hook), count in self.running.router.plugin_errors().items():
            if plugin == self.name:
                raise Nonconformance(f"{what}: its hook {hook} failed {count} times (see the log above)")

    async def check_tasks(self, before: set[asyncio.Task[Any]], what: str) -> None:
        """Raises Nonconformance when tasks that were not there before do not end."""
        here = {asyncio.current_task()}
        left = {task for task in asyncio.all_tasks() - before - here if not _is_connection(task)}
        if left:
            _, left = await asyncio.wait(left, timeout=SETTLE_S)
        if left:
            names = ", ".join(sorted(task.get_name() for task in left))
            raise Nonconformance(f"{what}: background tasks of it run on after the exchange: {names}")

    def worker_states(self) -> dict[Worker, set[str]]:
        return {worker: state_names(worker.state_of) for worker in self.running.router.workers}


def _is_connection(task: asyncio.Task[Any]) -> bool:
    """Whether a task belongs to the scripted worker or to a server's kept connection, not to a plugin."""
    return "testing" in getattr(getattr(task.get_coro(), "cr_code", None), "co_filename", "") or "uvicorn" in str(
        getattr(getattr(task.get_coro(), "cr_code", None), "co_filename", "")
    )


def state_names(state: Any) -> set[str]:
    """The names of the keys of a `State`."""
    return {key.name for key in state._values}


class LogWatch(logging.Handler):
    """The core's remarks about failing hooks, for the report."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def named(words: Sequence[str]) -> str:
    return ", ".join(words)
