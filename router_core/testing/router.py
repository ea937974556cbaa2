"""A router on a loopback port inside the test's own event loop."""

from __future__ import annotations

import sys
import types
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from router_core.clock import Clock
from router_core.in_process import RunningRouter, serving

__all__ = ["RunningRouter", "running_router"]


@asynccontextmanager
async def running_router(
    workers: Sequence[str] = (),
    *,
    enabled: Sequence[str] = ("health", "least_inflight"),
    plugins: Mapping[str, Mapping[str, Any]] | None = None,
    classes: Sequence[type[Any]] = (),
    router: Mapping[str, Any] | None = None,
    profiles: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[RunningRouter]:
    """Serves a router in front of ``workers`` until the block ends, which stops it as SIGTERM would.

    ``enabled``, ``plugins`` (settings by name), ``router`` and ``profiles`` are the tables of plugins.toml;
    ``classes`` are plugin or ASGI middleware classes to add, in order.

    >>> async with ScriptedWorker() as worker, running_router([worker.url], classes=[MyPlugin]) as router:
    ...     ...
    """
    settings = {
        "workers": list(workers),
        "shutdown_grace_s": 1.0,
        **(router or {}),
        "middleware_paths": [_importable(cls) for cls in classes],
    }
    tables = {"enabled": list(enabled), "router": settings, "plugins": plugins or {}, "profiles": profiles or {}}
    async with serving(tables, clock=clock) as running:
        yield running


def _importable(cls: type[Any]) -> str:
    """A path by which the class is found, whatever scope it was written in."""
    module = sys.modules.setdefault("router_core.testing.given", types.ModuleType("router_core.testing.given"))
    name = f"{cls.__name__}_{id(cls):x}"
    setattr(module, name, cls)
    return f"{module.__name__}:{name}"
