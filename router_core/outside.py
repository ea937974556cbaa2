"""The hooks outside a request: start and stop, routes, changes of workers, the end of sessions, tokenizer, metrics."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.routing import BaseRoute, Mount, Route

from router_core.errors import ConfigError, Reject
from router_core.loaded_plugin import FAULTS, LoadedPlugin, is_cancelled, observe
from router_core.router import Router
from router_core.types import Session, Worker, WorkerState

log = logging.getLogger("router_core")


class OutsideHooks:
    """Runs these hooks for every loaded plugin, in request order."""

    def __init__(self, plugins: Sequence[LoadedPlugin], *, hook_timeout_s: float) -> None:
        self._plugins = tuple(plugins)
        self._timeout_s = hook_timeout_s
        self._started: list[LoadedPlugin] = []

    def _calls(self, hook: str) -> list[tuple[LoadedPlugin, Callable[..., Any]]]:
        return [(plugin, plugin.hooks[hook]) for plugin in self._plugins if hook in plugin.hooks]

    async def startup(self, router: Router, timeout_s: float | None = None) -> None:
        """Each gets ``timeout_s``. Raises ConfigError naming the plugin that cannot start."""
        for plugin in self._plugins:
            if (call := plugin.hooks.get("startup")) is not None:
                try:
                    async with asyncio.timeout(timeout_s) as deadline:
                        await call(router)
                except ConfigError:
                    raise
                except FAULTS as error:
                    if is_cancelled(error):
                        raise
                    log.debug("plugin %r did not start", plugin.name, exc_info=error)
                    if deadline.expired():
                        message = (
                            f"plugin {plugin.name!r} did not start within {timeout_s:g} s (router.reload_timeout_s)"
                        )
                        raise ConfigError(message) from error
                    raise ConfigError(f"plugin {plugin.name!r} did not start: {error!r}") from error
            self._started.append(plugin)

    async def shutdown(self) -> None:
        """Stops what was started, in reversed order; a raise is logged and keeps nobody from stopping."""
        while self._started:
            plugin = self._started.pop()
            if (call := plugin.hooks.get("shutdown")) is not None:
                try:
                    async with asyncio.timeout(self._timeout_s):
                        await call()
                except FAULTS as error:  # the others must stop too
                    if is_cancelled(error):
                        raise
                    plugin.failed("shutdown", error)

    def worker_changed(self, worker: Worker, old: WorkerState | None, new: WorkerState) -> None:
        for plugin, call in self._calls("worker_changed"):
            observe(plugin, "worker_changed", call, worker, old, new)

    def session_closed(self, session: Session, reason: str) -> None:
        for plugin, call in self._calls("session_closed"):
            observe(plugin, "session_closed", call, session, reason)

    def session_moved(self, session_id: str, old: Worker, new: Worker) -> None:
        for plugin, call in self._calls("session_moved"):
            observe(plugin, "session_moved", call, session_id, old, new)

    async def told(self, name: str, message: Any) -> Any:
        """One plugin's answer to a message. Raises Reject, PluginError."""
        plugin, call = next(((p, c) for p, c in self._calls("told") if p.name == name), (None, None))
        if plugin is None or call is None:
            raise RuntimeError(f"no plugin {name!r} with a hook 'told' is loaded")
        try:
            return await call(message)
        except Reject:
            raise
        except Exception as error:
            raise plugin.failed("told", error) from error

    def name_of(self, instance: object) -> str:
        """The name under which a plugin is loaded."""
        return next(plugin.name for plugin in self._plugins if plugin.instance is instance)

    def hand_over(self) -> dict[str, Any]:
        """Plugin -> what it hands over to a new process. Raises PluginError."""
        found = {}
        for plugin, call in self._calls("hand_over"):
            try:
                found[plugin.name] = call()
            except Exception as error:
                raise plugin.failed("hand_over", error) from error
        return found

    def take_over(self, states: Mapping[str, Any]) -> None:
        """Raises PluginError."""
        for plugin, call in self._calls("take_over"):
            if plugin.name in states:
                try:
                    call(states[plugin.name])
                except Exception as error:
                    raise plugin.failed("take_over", error) from error

    def find_tokenizer(self, name: str | None) -> Any:
        """The first tokenizer that a plugin offers, or None."""
        for plugin, call in self._calls("tokenizer"):
            try:
                found = call(name)
            except FAULTS as error:
                raise plugin.failed("tokenizer", error) from error
            if found is not None:
                return found
        return None

    def metrics(self) -> str:
        """What every plugin adds to the metrics page; a part that would break the page is left out."""
        parts = []
        for plugin, call in self._calls("metrics"):
            try:
                part = call()
                if part:
                    parts.append(_checked_metrics(part))
            except FAULTS as error:  # the page shows the others
                plugin.failed("metrics", error)
        return "".join(parts)

    def errors(self) -> dict[tuple[str, str], int]:
        """(plugin, hook) -> how often it failed."""
        return {(plugin.name, hook): count for plugin in self._plugins for hook, count in plugin.errors.items()}

    # --------------------------------------------------------------------------------------------------------- routes
    def routes(self, core: Sequence[BaseRoute]) -> list[BaseRoute]:
        """The plugins' routes. Raises ConfigError for one that is outside its place or claimed already."""
        claimed: dict[tuple[str, str], str] = {}
        for route in core:
            claimed.update(dict.fromkeys(_claims(route), "the core"))
        found: list[BaseRoute] = []
        for plugin, call in self._calls("routes"):
            try:
                routes = list(call())
            except FAULTS as error:
                raise ConfigError(f"plugin {plugin.name!r} gives no routes: {error!r}") from error
            for route in routes:
                if not isinstance(route, BaseRoute):
                    raise ConfigError(f"plugin {plugin.name!r}: {route!r} is no Starlette route")
                _check_place(plugin.name, route)
                for claim in _claims(route):
                    if claim in claimed:
                        raise ConfigError(
                            f"plugin {plugin.name!r}: {claim[0]} {claim[1]} is claimed by {claimed[claim]} already"
                        )
                    claimed[claim] = f"plugin {plugin.name!r}"
                found.append(route)
        return found


TOP_LEVEL: dict[str, tuple[str, ...]] = {
    "engine_control": (
        "abort_request",
        "abort_requests",
        "flush_cache",
        "pause_generation",
        "continue_generation",
        "sleep",
        "wake_up",
        "pause",
        "resume",
        "reset_prefix_cache",
        "reset_mm_cache",
        "reset_encoder_cache",
        "collective_rpc",
        "load_lora_adapter",
        "unload_lora_adapter",
        "init_weight_transfer_engine",
        "start_weight_update",
        "update_weights",
        "finish_weight_update",
        "update_weights_from_disk",
        "update_weights_from_tensor",
        "update_weights_from_distributed",
        "update_weights_from_ipc",
        "init_weights_update_group",
        "destroy_weights_update_group",
        "update_weight_version",
        "start_profile",
        "stop_profile",
        "release_memory_occupation",
        "resume_memory_occupation",
        "get_model_info",
        "model_info",
        "get_server_info",
        "server_info",
        "engine_metrics",
        "v1",
    ),
    "weight_version": ("routing", "routing_loop", "workers"),
    "session_control": ("control", "workers"),
    "metrics": ("metrics",),
    "radix_cache": ("radix_cache", "retrieve_from_text"),
    "routed_experts": ("routed_experts",),
}
"""Plugin -> the top-level path segments that are its own by design."""
SHARED = ("v1",)
"""First path segments that belong to the workers: of these a plugin gets the very paths of its routes and no others."""


_METRICS_LINE = re.compile(
    r"(#.*)?|[a-zA-Z_:][a-zA-Z0-9_:]*[ \t]*(\{.*\})?[ \t]+[0-9eE.+naifNAIF-]+([ \t]+-?[0-9]+)?[ \t]*"
)


def _checked_metrics(part: object) -> str:
    """Raises ValueError for what is no Prometheus text."""
    if not isinstance(part, str):
        raise ValueError(f"answered {part!r}, not a text")
    for number, line in enumerate(part.split("\n"), 1):
        if not _METRICS_LINE.fullmatch(line):
            raise ValueError(f"line {number} is no Prometheus text: {line[:100]!r}")
    return part if part.endswith("\n") else part + "\n"


def path_of(route: BaseRoute) -> str:
    """A route's path pattern."""
    return str(getattr(route, "path", ""))


def _check_place(plugin: str, route: BaseRoute) -> None:
    path = path_of(route)
    parts = path.strip("/").split("/")
    is_own = path.startswith(f"/plugins/{plugin}/")
    is_session_noun = len(parts) >= 3 and parts[0] == "sessions" and parts[1].startswith("{") and "{" not in parts[2]
    is_designed = parts[0] in TOP_LEVEL.get(plugin, ()) or path == "/sessions/capabilities"
    if not (is_own or is_session_noun or is_designed):
        raise ConfigError(
            f"plugin {plugin!r}: its route {path!r} must be below /plugins/{plugin}/ or be /sessions/{{id}}/NOUN"
        )


def _claims(route: BaseRoute) -> list[tuple[str, str]]:
    if isinstance(route, Route):
        path = "/".join("{}" if part.startswith("{") else part for part in route.path.split("/"))
        return [(method, path) for method in sorted(route.methods or ("ANY",))]
    if isinstance(route, Mount):
        return [("MOUNT", route.path)]
    return [("ANY", path_of(route))]
