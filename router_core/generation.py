"""All that comes of one reading of the configuration: plugins, plans, routes, and what plugins have started.

A reload builds a new generation beside the one that serves, swaps them, and lets the old one run out. What outlives a
generation (workers, sessions, connections, held requests, the clock) is in `Shared`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.routing import BaseRoute

from router_core.admin import SessionRoutes
from router_core.clock import Clock
from router_core.config import Config
from router_core.control import ControlClient
from router_core.holds import HoldQueue
from router_core.in_use import InUse
from router_core.outside import OutsideHooks
from router_core.plans import Plans
from router_core.proxy import Serving
from router_core.registry import PluginSource, Registry
from router_core.router import Router
from router_core.routes import RouteTable
from router_core.sessions import SessionTable
from router_core.settings import RouterSettings
from router_core.switch_off import SwitchOff
from router_core.tasks import Tasks
from router_core.tracing import traced
from router_core.workers import WorkerTable

STOP_S = 5.0
"""Seconds that background work of ended exchanges gets at the end of a generation."""
RELOADED = frozenset(("available", "hook_timeout_s", "skip_max_failures", "skip_window_s", "trace_hooks"))
"""Settings of ``[router]`` that belong to a generation; the others hold until the process ends."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What every generation works with."""

    clock: Clock
    workers: WorkerTable
    sessions: SessionTable
    holds: HoldQueue
    control: ControlClient
    core_routes: Callable[[Generation], list[BaseRoute]]
    tell: Callable[[str, Any], Awaitable[list[Any]]]
    """Tells a plugin, by its name, in every process."""

    def router(self, settings: RouterSettings, tasks: Tasks) -> Router:
        return Router(settings, self.clock, tasks, self.workers, self.sessions, self.holds, self.control)


class Generation:
    """One set of loaded plugins and everything that is theirs."""

    def __init__(self, number: int, config: Config, sources: Sequence[PluginSource], shared: Shared) -> None:
        """Raises ConfigError; then nothing has been started."""
        settings = config.router
        self.number = number
        self.config = config
        self.registry = Registry(config, sources)
        self.outside = OutsideHooks(self.registry.plugins, hook_timeout_s=settings.hook_timeout_s)
        self.plans = Plans(
            self.registry.plugins,
            self.registry.enabled,
            self.registry.profiles,
            profile=config.profile,
            installed=self.registry.installed,
            hook_timeout_s=settings.hook_timeout_s,
        )
        switch_off = SwitchOff(
            shared.clock.now,
            max_failures=settings.skip_max_failures,
            window_s=settings.skip_window_s,
            on_off=self.plans.compile_anew,
        )
        for plugin in self.registry.plugins:
            plugin.on_failure = switch_off.failed
        if settings.trace_hooks:
            self.plans.watch_hooks(traced)
        self._tasks = Tasks(settings.max_background_tasks)
        self._work = Tasks(settings.max_background_tasks)
        self.in_use = InUse()
        self.serving = Serving(self.plans, self._work, self.in_use)
        self.router = shared.router(settings, self._tasks)
        self.router.find_tokenizer = self.outside.find_tokenizer
        self.router.session_moved = self.outside.session_moved
        self.router.tell_all = lambda plugin, message: shared.tell(self.outside.name_of(plugin), message)
        self.router.time_hooks = self.plans.time_hooks
        self.router.plugin_errors = self.outside.errors
        self.router.plugin_metrics = self.outside.metrics
        sessions = SessionRoutes(shared.sessions, self.plans, self.outside, settings)
        self.router.open_session = sessions.open_session
        core = [*sessions.routes(), *shared.core_routes(self)]
        self.routes = RouteTable(self.outside.routes(core), core, self.in_use)

    async def start(self, timeout_s: float | None = None) -> None:
        """Runs every plugin's `startup`, each within ``timeout_s``.

        Raises ConfigError, once those that had started are stopped.
        """
        try:
            await self.outside.startup(self.router, timeout_s)
        except BaseException:
            await self.stop()
            raise

    async def run_out(self) -> None:
        """Waits for the exchanges and routes that began in it, then stops it."""
        await self.in_use.until_idle()
        await self.stop()

    async def stop(self) -> None:
        """Work of ended exchanges first, then background work, and every plugin's `shutdown`."""
        await self._work.finish(STOP_S)
        await self._tasks.cancel()
        await self.outside.shutdown()

    def meet_workers(self, shared: Shared) -> None:
        """Tells its plugins of the workers that there are, as if they were registered now."""
        for worker in shared.workers:
            self.outside.worker_changed(worker, None, worker.state)

    def unchanged(self, since: RouterSettings) -> list[str]:
        """The settings of ``[router]`` that differ from those of the process and wait for its next start."""
        mine: Any = self.config.router
        names = [name for name in RouterSettings.model_fields if name not in RELOADED]
        return [f"router.{name}" for name in names if getattr(mine, name) != getattr(since, name)]
