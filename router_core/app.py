"""Puts the router together: configuration in, one ASGI app out."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from typing import Any, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

from router_core.admin import CLAIMED, HealthRoutes, SessionRoutes, WorkerRoutes
from router_core.asgi import ASGIApp, Front, Guard
from router_core.clock import Clock
from router_core.config import Config
from router_core.control import ControlClient
from router_core.errors import ConfigError, Reject, RouterError
from router_core.failures import answer_for
from router_core.holds import HoldQueue
from router_core.outside import SHARED, OutsideHooks, path_of
from router_core.plans import Plans
from router_core.proxy import Proxy
from router_core.registry import PluginSource, Registry, import_path, is_plugin_class, plugin_source
from router_core.router import Router
from router_core.sessions import SessionTable
from router_core.stats_routes import StatsRoutes
from router_core.tasks import Tasks
from router_core.upstream import make_upstream
from router_core.workers import WorkerTable

log = logging.getLogger("router_core")

SWEEP_S = 5.0
"""Seconds between two looks for sessions to evict."""
STOP_S = 5.0
"""Seconds that background work of ended exchanges gets at shutdown."""


class Application:
    """One router: build it (everything is validated), then serve `app`."""

    def __init__(self, config: Config, *, clock: Clock | None = None) -> None:
        """Raises ConfigError, before anything serves."""
        settings = config.router
        self.config = config
        self._clock = clock or Clock()
        sources, middlewares = _middleware_paths(config)
        self.registry = Registry(config, sources)
        self.outside = OutsideHooks(self.registry.plugins, hook_timeout_s=settings.hook_timeout_s)
        self.start_error: ConfigError | None = None
        """Why it did not start."""
        self.plans = Plans(
            self.registry.plugins,
            self.registry.enabled,
            self.registry.profiles,
            profile=config.profile,
            hook_timeout_s=settings.hook_timeout_s,
        )
        self._tasks = Tasks(settings.max_background_tasks)
        self._work = Tasks(settings.max_background_tasks)
        self.holds = HoldQueue(self._clock, max_requests=settings.max_held_requests, timeout_s=settings.hold_timeout_s)
        self.workers = WorkerTable(
            self._clock,
            max_workers=settings.max_workers,
            on_change=self.outside.worker_changed,
            on_room=self.holds.wake_for_workers,
        )
        self.sessions = SessionTable(
            self._clock,
            max_sessions=settings.max_sessions,
            ttl_s=settings.session_ttl_s,
            on_close=self.outside.session_closed,
        )
        self._control = ControlClient(connect_timeout_s=settings.connect_timeout_s)
        self._upstream = make_upstream(
            settings.data_client,
            connect_timeout_s=settings.connect_timeout_s,
            max_field_bytes=settings.max_field_bytes,
        )
        self.router = Router(settings, self._clock, self._tasks, self.workers, self.sessions, self.holds, self._control)
        self.router.find_tokenizer = self.outside.find_tokenizer
        self.router.session_moved = self.outside.session_moved
        self.router.time_hooks = self.plans.time_hooks
        self.router.plugin_errors = self.outside.errors
        self.router.plugin_metrics = self.outside.metrics
        self.proxy = Proxy(
            settings, self.plans, self.workers, self.sessions, self._upstream, self.holds, self._work, self._clock
        )
        self.router.exchanges = self.proxy.running
        self.app = self._wrap(self._front(), middlewares)
        for url in settings.workers:
            try:
                self.workers.add(url)
            except Reject as error:
                raise ConfigError(error.message, where=config.where("router.workers"), key="router.workers") from None

    # ------------------------------------------------------------------------------------------------------ building
    def _front(self) -> Front:
        settings = self.config.router
        sessions = SessionRoutes(self.sessions, self.plans, self.outside, settings)
        self.router.open_session = sessions.open_session
        core: list[BaseRoute] = [
            *HealthRoutes(self.workers, self.router.warming).routes(),
            *sessions.routes(),
            *StatsRoutes(self.workers, self._clock).routes(),
            *WorkerRoutes(self.workers, self._work, settings).routes(),
        ]
        added = self.outside.routes(core)
        starlette = Starlette(
            routes=[*added, *core],
            exception_handlers={RouterError: _refused, HTTPException: _refused_by_starlette, Exception: _failed},
        )
        starlette.router.redirect_slashes = False
        paths = [path_of(route).strip("/").split("/") for route in added]
        claimed = {*CLAIMED, *(parts[0] for parts in paths if parts[0] not in SHARED)}
        shared = {path_of(route) for route, parts in zip(added, paths, strict=True) if parts[0] in SHARED}
        nouns = {parts[2] for parts in paths if parts[0] == "sessions" and len(parts) > 2}
        return Front(
            self.proxy,
            cast(ASGIApp, starlette),
            claimed=[name.encode() for name in claimed],
            claimed_paths=[path.encode() for path in shared],
            session_nouns=[noun.encode() for noun in nouns],
            start=self.start,
            stop=self.stop,
        )

    def _wrap(self, app: ASGIApp, middlewares: Sequence[tuple[str, Any]]) -> ASGIApp:
        """The app inside its middlewares, the first of which is the outermost, inside the guard."""
        for path, cls in reversed(middlewares):
            try:
                app = cls(app, router=self.router) if _takes_router(cls) else cls(app)
            except Exception as error:
                raise ConfigError(f"middleware {path!r} cannot be made: {error!r}", where="middleware paths") from error
        return Guard(app) if middlewares else app

    # ------------------------------------------------------------------------------------------------ start and stop
    async def start(self) -> None:
        """Runs every plugin's `startup`. Raises ConfigError, once those that had started are stopped."""
        try:
            await self.outside.startup(self.router)
        except ConfigError as error:
            self.start_error = error
            await self.stop()
            raise
        self._tasks.spawn(self._sweep(), name="session sweep")

    def begin_stop(self) -> None:
        """Running requests may finish; those that wait for a worker are refused."""
        self.proxy.is_stopping = True
        self.holds.close()

    async def stop(self) -> None:
        """Work of ended exchanges first, then background work, every plugin's `shutdown`, and the connections."""
        self.begin_stop()
        await self._work.finish(STOP_S)
        await self._tasks.cancel()
        await self.outside.shutdown()
        await self._upstream.aclose()
        await self._control.aclose()

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(SWEEP_S)
            self.sessions.sweep()


def _middleware_paths(config: Config) -> tuple[list[PluginSource], list[tuple[str, Any]]]:
    """Plugin classes and ASGI middleware classes among the given paths, in order."""
    sources: list[PluginSource] = []
    middlewares: list[tuple[str, Any]] = []
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
                middlewares.append((path, found))
            else:
                raise ConfigError(
                    f"{path!r} is neither a plugin class nor an ASGI middleware class", where=where, key=key
                )
    return sources, middlewares


def _takes_router(cls: type[Any]) -> bool:
    try:
        return "router" in inspect.signature(cls).parameters
    except (TypeError, ValueError):
        return False


# ------------------------------------------------------------------------------------------- errors of our own routes
async def _refused(request: Request, error: Exception) -> Response:
    return _response(error)


async def _refused_by_starlette(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return _response(error)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
    response = _response(Reject(error.status_code, code, f"{request.method} {request.url.path}: {error.detail}"))
    if error.status_code == 405:
        response.headers["allow"] = ", ".join(_allowed(request))
    return response


def _allowed(request: Request) -> list[str]:
    """Every method that some route of this path takes; Starlette names those of the first route alone."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in routes for method in getattr(route, "methods", None) or ()})


async def _failed(request: Request, error: Exception) -> Response:
    return _response(error)


def _response(error: Exception) -> Response:
    answer = answer_for(error)
    return Response(
        answer.ready_body or b"",
        answer.status,
        {name: value for name, value in answer.headers if name != "content-length"},
    )
