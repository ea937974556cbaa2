"""What an exchange costs with the plugin on: told, never asserted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from router_core import Exchange
from router_core.testing.client import RawClient
from router_core.testing.conformance.passing import bodies
from router_core.testing.conformance.subject import Subject
from router_core.timing import timed

EXCHANGES = 40


class HookTimes:
    """Seconds of every call of a plugin's hooks; the onion's without what is inside it."""

    def __init__(self) -> None:
        self.of_hook: dict[str, list[float]] = {}
        self.of_exchange: dict[str, float] = defaultdict(float)
        """Exchange id -> seconds in all hooks, as far as they are given the exchange."""

    def timed(self, hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """For `Bench.watch`."""
        return timed(hook, call, partial(self._keep, hook))

    def _keep(self, hook: str, args: tuple[Any, ...], seconds: float) -> None:
        self.of_hook.setdefault(hook, []).append(seconds)
        if args and isinstance(args[0], Exchange):
            self.of_exchange[args[0].id] += seconds


async def hook_seconds(subject: Subject) -> tuple[dict[str, float], float]:
    """Hook -> median seconds of one call, and the median of what all took of one exchange, over ``EXCHANGES``."""
    times = HookTimes()
    async with subject.bench() as bench:
        bench.watch(times.timed)
        target, body = bodies(subject.engine)[0]
        async with RawClient(bench.port) as client:
            for _ in range(EXCHANGES):
                await client.request("POST", target, json=body)
    of_one = median(times.of_exchange.values()) if times.of_exchange else 0.0
    return {hook: median(taken) for hook, taken in times.of_hook.items()}, of_one
