"""Puts the router together: configuration in, one ASGI app out."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.routing import BaseRoute

from router_core.access import Access
from router_core.admin import HealthRoutes, WorkerRoutes
from router_core.asgi import ASGIApp, Front, Guard
from router_core.build import build_name
from router_core.clock import Clock
from router_core.config import Config
from router_core.control import ControlClient
from router_core.errors import ConfigError, PluginError, Reject
from router_core.generation import Generation, Shared
from router_core.holds import HoldQueue
from router_core.introspection import describe_plugins
from router_core.operator_routes import OperatorRoutes
from router_core.outside import OutsideHooks
from router_core.plans import Plans
from router_core.proxy import Proxy
from router_core.registry import PluginSource, Registry, import_path, is_plugin_class, plugin_source
from router_core.router import Router
from router_core.sessions import SessionTable
from router_core.stalls import StallWatch
from router_core.stats_routes import StatsRoutes
from router_core.tasks import Tasks
from router_core.types import Session, Worker, WorkerState
from router_core.upstream import make_upstream
from router_core.urls import AllowedWorkers
from router_core.workers import WorkerTable

log = logging.getLogger("router_core")

SWEEP_S = 5.0
"""Seconds between two looks for sessions to evict."""
STOP_S = 5.0
"""Seconds that workers which drain get at shutdown."""
MAX_OLD_GENERATIONS = 8
"""Generations that may wait for their last exchanges at one time."""


class Application:
    """One router: build it (everything is validated), then serve `app`.

    ``read_config`` gives the configuration for a reload; without it there is none.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        read_config: Callable[[], Config] | None = None,
        make_worker: Callable[..., Worker] = Worker,
    ) -> None:
        """Raises ConfigError, before anything serves."""
        settings = config.router
        self.config = config
        """What the process was started with."""
        self.start_error: ConfigError | None = None
        """Why it did not start."""
        self._read_config = read_config
        self.reload_all: Callable[[], Awaitable[dict[str, Any]]] = self.reload
        """What ``POST /admin/reload`` does: with several processes it has all of them reload."""
        self.tell: Callable[[str, Any], Awaitable[list[Any]]] = self._tell_here
        """Tells a plugin something in every process."""
        self._clock = clock or Clock()
        self._tasks = Tasks(settings.max_background_tasks)
        self._work = Tasks(settings.max_background_tasks)
        self._generations: list[Generation] = []
        """All that hear of workers and sessions: the one that serves, one that starts, and those that run out."""
        self._is_reloading = False
        self._stalls = StallWatch(settings.loop_stall_s)
        self.holds = HoldQueue(self._clock, max_requests=settings.max_held_requests, timeout_s=settings.hold_timeout_s)
        self.workers = WorkerTable(
            self._clock,
            max_workers=settings.max_workers,
            on_change=self._worker_changed,
            on_room=self.holds.wake_for_workers,
            allowed=_allowed_workers(config),
            make_worker=make_worker,
        )
        self.sessions = SessionTable(
            self._clock,
            max_sessions=settings.max_sessions,
            ttl_s=settings.session_ttl_s,
            on_close=self._session_closed,
        )
        self._control = ControlClient(connect_timeout_s=settings.connect_timeout_s)
        self._upstream = make_upstream(
            settings.data_client,
            connect_timeout_s=settings.connect_timeout_s,
            max_field_bytes=settings.max_field_bytes,
        )
        self._shared = Shared(
            self._clock,
            self.workers,
            self.sessions,
            self.holds,
            self._control,
            core_routes=self._core_routes,
            tell=lambda plugin, message: self.tell(plugin, message),
        )
        sources, middlewares = _middleware_paths(config)
        self._middlewares = [path for path, _, _ in middlewares]
        _check_processes(config, middlewares)
        self.generation = Generation(1, config, sources, self._shared)
        self._generations.append(self.generation)
        self._stalls.know(self.registry.plugins)
        self.proxy = Proxy(
            settings,
            self.generation.serving,
            self.workers,
            self.sessions,
            self._upstream,
            self.holds,
            self._clock,
        )
        self.generation.router.exchanges = self.proxy.running
        self.router = self._lasting_router()
        self.access = Access(config)
        self.front = Front(self.proxy, self.generation.routes, self.access, start=self.start, stop=self.stop)
        self.app = self._wrap(self.front, middlewares)
        self.is_fast = settings.front == "auto" and not middlewares
        """Whether proxied requests may pass the app by: nothing is mounted around it."""
        for url in settings.workers:
            try:
                self.workers.add(url)
            except Reject as error:
                raise ConfigError(error.message, where=config.where("router.workers"), key="router.workers") from None

    # ------------------------------------------------------------------------------- of the generation that serves
    @property
    def registry(self) -> Registry:
        return self.generation.registry

    @property
    def outside(self) -> OutsideHooks:
        return self.generation.outside

    @property
    def plans(self) -> Plans:
        return self.generation.plans

    # ------------------------------------------------------------------------------------------------------ building
    def _core_routes(self, generation: Generation) -> list[BaseRoute]:
        settings = self.config.router
        return [
            *HealthRoutes(self.workers, generation.router.warming).routes(),
            *StatsRoutes(self.workers, self._clock).routes(),
            *WorkerRoutes(self.workers, self._work, settings).routes(),
            *OperatorRoutes(lambda: self._describe(generation), lambda: self.reload_all()).routes(),
        ]

    def _describe(self, generation: Generation) -> dict[str, Any]:
        told = describe_plugins(generation.registry, generation.plans)
        return {"generation": generation.number, "build": build_name(), "plugins": told}

    def _wrap(self, app: ASGIApp, middlewares: Sequence[tuple[str, Any, str]]) -> ASGIApp:
        """The app inside its middlewares, the first of which is the outermost, inside the guard."""
        for path, cls, where in reversed(middlewares):
            try:
                app = cls(app, router=self.router) if _takes_router(cls) else cls(app)
            except Exception as error:
                raise ConfigError(
                    f"{path!r}: no method is marked @hookimpl, so it is taken for an ASGI middleware, "
                    f"and as one it cannot be made: {error!r}",
                    where=where,
                ) from error
        return Guard(app) if middlewares else app

    def _lasting_router(self) -> Router:
        """For middlewares and whoever shares the process: it outlives generations, and asks the one that serves."""
        router = self._shared.router(self.config.router, self._tasks)
        router.exchanges = self.proxy.running
        router.find_tokenizer = lambda name: self.outside.find_tokenizer(name)
        router.session_moved = lambda session_id, old, new: self.outside.session_moved(session_id, old, new)
        router.time_hooks = lambda: self.plans.time_hooks()
        router.tell_all = lambda plugin, message: self.tell(self.outside.name_of(plugin), message)
        router.plugin_errors = lambda: self.outside.errors()
        router.plugin_metrics = lambda: self.outside.metrics()
        router.open_session = lambda body: self.generation.router.open_session(body)
        router.warming = self.generation.router.warming
        return router

    # ------------------------------------------------------------------------------------------------ start and stop
    async def start(self) -> None:
        """Runs every plugin's `startup`. Raises ConfigError, once those that had started are stopped."""
        try:
            await self.generation.start()
        except ConfigError as error:
            self.start_error = error
            await self.stop()
            raise
        self._tasks.spawn(self._sweep(), name="session sweep")
        self._stalls.start()

    def begin_stop(self) -> None:
        """Running requests may finish; those that wait for a worker are refused."""
        self.proxy.is_stopping = True
        self.holds.close()

    async def stop(self) -> None:
        """Work of ended exchanges first, then background work, every plugin's `shutdown`, and the connections."""
        self.begin_stop()
        self._stalls.stop()
        await self._work.finish(STOP_S)
        await self._tasks.cancel()
        for generation in reversed(self._generations):
            await generation.stop()
        await self._upstream.aclose()
        await self._control.aclose()

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(SWEEP_S)
            self.sessions.sweep()

    # --------------------------------------------------------------------------------------------------------- reload
    async def reload(self) -> dict[str, Any]:
        """Reads the configuration anew, builds and starts a generation of it, and has it serve from then on.

        Raises Reject: 400 with what is wrong, and then everything is as it was; 409 while that cannot be.
        """
        if self._read_config is None or self.proxy.is_stopping:
            raise Reject(409, "cannot_reload", "this router has no configuration to read again, or it stops")
        if self._is_reloading or len(self._generations) > MAX_OLD_GENERATIONS:
            message = "a reload is under way, or too many former ones wait for their exchanges to end"
            raise Reject(409, "reload_running", message, retry_after_s=1)
        fresh = await self.prepare(self._read_config)
        return self.commit(fresh)

    async def prepare(self, read_config: Callable[[], Config]) -> Generation:
        """Builds and starts a generation beside the one that serves; `commit` or `abandon` it. Raises Reject."""
        self._is_reloading = True
        try:
            return await self._start_generation(read_config)
        except ConfigError as error:
            log.error("the configuration was not reloaded, the old one serves on: %s", error)
            raise Reject(400, "bad_configuration", str(error)) from error
        finally:
            self._is_reloading = False

    async def abandon(self, fresh: Generation) -> None:
        """Stops a prepared generation that will not serve."""
        self._generations.remove(fresh)
        await fresh.stop()

    def commit(self, fresh: Generation) -> dict[str, Any]:
        """Has a prepared generation serve from now on; the old one runs out."""
        old, self.generation = self.generation, fresh
        with contextlib.suppress(PluginError):  # it is logged; the old generation would serve no better
            fresh.outside.take_over(old.outside.hand_over())
        self.proxy.serving = fresh.serving
        self.front.replace_routes(fresh.routes)
        self.router.warming = fresh.router.warming
        self._tasks.spawn(self._run_out(old), name=f"generation {old.number} runs out")
        unchanged = fresh.unchanged(self.config.router)
        if unchanged:
            log.warning("these settings change at the next start only: %s", ", ".join(unchanged))
        log.info("generation %d serves: %s", fresh.number, ", ".join(fresh.plans.default.names) or "no plugin")
        return {"generation": fresh.number, "enabled": fresh.plans.default.names, "needs_restart": unchanged}

    def reload_soon(self) -> None:
        """Reloads in the background; what is wrong is logged."""
        self._tasks.spawn(self._reload_quietly(), name="reload")

    async def _reload_quietly(self) -> None:
        try:
            await self.reload()
        except Reject as error:
            log.warning("no reload: %s", error.message)

    async def _start_generation(self, read_config: Callable[[], Config]) -> Generation:
        config = read_config()
        sources, middlewares = _middleware_paths(config)
        if config.router.processes > 1 and [path for path, _, _ in middlewares] != self._middlewares:
            message = "ASGI middlewares change at the next start only: a process that was replaced would have others"
            raise ConfigError(message, where=config.where("router.middleware_paths"), key="router.middleware_paths")
        fresh = Generation(self.generation.number + 1, config, sources, self._shared)
        fresh.router.exchanges = self.proxy.running
        self._generations.append(fresh)
        try:
            fresh.meet_workers(self._shared)
            await fresh.start(self.config.router.reload_timeout_s)
        except BaseException:
            self._generations.remove(fresh)
            raise
        self._stalls.know(fresh.registry.plugins)
        return fresh

    async def _run_out(self, old: Generation) -> None:
        await old.run_out()
        self._generations.remove(old)
        log.info("generation %d has ended", old.number)

    async def _tell_here(self, plugin: str, message: Any) -> list[Any]:
        return [await self.outside.told(plugin, message)]

    def _worker_changed(self, worker: Worker, old: WorkerState | None, new: WorkerState) -> None:
        for generation in list(self._generations):
            generation.outside.worker_changed(worker, old, new)

    def _session_closed(self, session: Session, reason: str) -> None:
        for generation in list(self._generations):
            generation.outside.session_closed(session, reason)


def _allowed_workers(config: Config) -> AllowedWorkers:
    try:
        return AllowedWorkers(config.router.worker_schemes, config.router.worker_hosts)
    except ValueError as error:
        key = "router.worker_hosts"
        raise ConfigError(str(error), where=config.where(key), key=key) from None


def _middleware_paths(config: Config) -> tuple[list[PluginSource], list[tuple[str, Any, str]]]:
    """Plugin classes, and ASGI middleware classes with path and source, among the given paths, in order."""
    sources: list[PluginSource] = []
    middlewares: list[tuple[str, Any, str]] = []
    settings = config.router
    for key, paths in (
        ("router.middleware_paths", settings.middleware_paths),
        ("router.slime_router_middleware_paths", settings.slime_router_middleware_paths[::-1]),
    ):
        for path in paths:
            where = config.where(key)
            found = import_path(path, where)
            if is_plugin_class(found):
                sources.append(plugin_source(found, path))
            elif inspect.isclass(found):
                middlewares.append((path, found, where))
            else:
                raise ConfigError(
                    f"{path!r} is neither a plugin class nor an ASGI middleware class", where=where, key=key
                )
    return sources, middlewares


def _check_processes(config: Config, middlewares: Sequence[tuple[str, Any, str]]) -> None:
    """A middleware, too, has to say that it works in several processes."""
    for path, cls, where in middlewares:
        if config.router.processes > 1 and getattr(cls, "several_processes", False) is not True:
            message = f"middleware {path!r} does not say several_processes = True: router.processes must be 1"
            raise ConfigError(message, where=where, key="router.processes")


def _takes_router(cls: type[Any]) -> bool:
    try:
        return "router" in inspect.signature(cls).parameters
    except (TypeError, ValueError):
        return False
