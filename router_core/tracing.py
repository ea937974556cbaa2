"""One log line for each call of a hook, for who wants to see them (``[router] trace_hooks``)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any

from router_core.hookspecs import ASYNC
from router_core.loaded_plugin import LoadedPlugin

log = logging.getLogger("router_core")


def traced(plugin: LoadedPlugin, hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same implementation; each call of it is logged. The onion's duration has what is inside it in it."""

    def plain(*args: Any) -> Any:
        since = perf_counter()
        try:
            return call(*args)
        finally:
            _tell(plugin.name, hook, args[0], since)

    async def awaited(*args: Any) -> Any:
        since = perf_counter()
        try:
            return await call(*args)
        finally:
            _tell(plugin.name, hook, args[0], since)

    return awaited if hook in ASYNC else plain


def _tell(plugin: str, hook: str, subject: Any, since: float) -> None:
    log.info("hook %s.%s of %s took %.3f ms", plugin, hook, subject.id, (perf_counter() - since) * 1e3)
