"""How long each plugin's hooks take, for those who want to know: a plan without timing has none of this in its way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from time import perf_counter
from typing import Any

from router_core.hookspecs import ASYNC, CallNext
from router_core.types import Answer, Exchange


class HookTime:
    """What one hook of one plugin has cost: wall time, without what it awaited of the inner onion."""

    __slots__ = ("calls", "hook", "plugin", "seconds")

    def __init__(self, plugin: str, hook: str) -> None:
        self.plugin, self.hook = plugin, hook
        self.calls = 0
        """Of all calls, estimated from those that were timed, as are the ``seconds``."""
        self.seconds = 0.0

    def add(self, seconds: float, stands_for: int) -> None:
        """The time of one call, which stands for so many."""
        self.calls += stands_for
        self.seconds += seconds * stands_for


class HookTimes:
    """The times of all hooks of this process, whichever plan they ran in."""

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self._now = now
        self._times: dict[tuple[str, str], HookTime] = {}

    def __iter__(self) -> Iterator[HookTime]:
        return iter(list(self._times.values()))

    def timed(self, plugin: str, hook: str, call: Callable[..., Any], stands_for: int = 1) -> Callable[..., Any]:
        """The same implementation with its time taken."""
        time = self._times.setdefault((plugin, hook), HookTime(plugin, hook))

        def keep(args: tuple[Any, ...], seconds: float) -> None:
            time.add(seconds, stands_for)

        return timed(hook, call, keep, self._now)


Keep = Callable[[tuple[Any, ...], float], None]
"""Takes what a hook was called with, and the seconds that it took."""


def timed(
    hook: str, call: Callable[..., Any], keep: Keep, now: Callable[[], float] = perf_counter
) -> Callable[..., Any]:
    """The same implementation of ``hook``; ``keep`` gets each call's seconds, the onion's without the inner."""
    if hook == "around_upstream":
        return _timed_layer(call, keep, now)
    return (_timed_async if hook in ASYNC else _timed_plain)(call, keep, now)


def _timed_plain(call: Callable[..., Any], keep: Keep, now: Callable[[], float]) -> Callable[..., Any]:
    def timed(*args: Any) -> Any:
        since = now()
        try:
            return call(*args)
        finally:
            keep(args, now() - since)

    return timed


def _timed_async(call: Callable[..., Awaitable[Any]], keep: Keep, now: Callable[[], float]) -> Callable[..., Any]:
    async def timed(*args: Any) -> Any:
        since = now()
        try:
            return await call(*args)
        finally:
            keep(args, now() - since)

    return timed


def _timed_layer(
    call: Callable[[Exchange, CallNext], Awaitable[Answer]], keep: Keep, now: Callable[[], float]
) -> Callable[..., Any]:
    async def timed(exchange: Exchange, call_next: CallNext) -> Answer:
        inner = 0.0

        async def next_(exchange_: Exchange) -> Answer:
            nonlocal inner
            since = now()
            try:
                return await call_next(exchange_)
            finally:
                inner += now() - since

        since = now()
        try:
            return await call(exchange, next_)
        finally:
            keep((exchange,), now() - since - inner)

    return timed
