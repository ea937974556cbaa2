"""What an exchange costs with the plugin on: told, never asserted."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from statistics import median
from time import perf_counter
from typing import Any

from router_core.testing.client import RawClient
from router_core.testing.conformance.passing import bodies
from router_core.testing.conformance.subject import Subject

EXCHANGES = 40


async def hook_seconds(subject: Subject) -> dict[str, float]:
    """Hook -> median seconds of one call, over ``EXCHANGES`` exchanges; the onion's hook with what is inside it."""
    times: dict[str, list[float]] = {}

    def timed(hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
        kept = times.setdefault(hook, [])

        def plain(*args: Any) -> Any:
            since = perf_counter()
            try:
                return call(*args)
            finally:
                kept.append(perf_counter() - since)

        async def waited(*args: Any) -> Any:
            since = perf_counter()
            try:
                return await call(*args)
            finally:
                kept.append(perf_counter() - since)

        return waited if iscoroutinefunction(getattr(subject.cls, hook, None)) else plain

    async with subject.bench() as bench:
        bench.watch(timed)
        target, body = bodies(subject.engine)[0]
        async with RawClient(bench.port) as client:
            for _ in range(EXCHANGES):
                await client.request("POST", target, json=body)
    return {hook: median(taken) for hook, taken in times.items() if taken}
