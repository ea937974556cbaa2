"""How long each plugin's hooks take, for those who want to know: a plan without timing has none of this in its way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from time import perf_counter
from typing import Any

from router_core.hookspecs import ASYNC, CallNext
from router_core.types import Answer, Exchange

SAMPLE = 16
"""Of so many calls of a hook the first is timed: to look at the clock costs more than most hooks."""


class HookTime:
    """What one hook of one plugin has cost: wall time, without what it awaited of the inner onion."""

    __slots__ = ("_timed_calls", "_timed_seconds", "calls", "hook", "plugin")

    def __init__(self, plugin: str, hook: str) -> None:
        self.plugin, self.hook = plugin, hook
        self.calls = 0
        self._timed_calls, self._timed_seconds = 0, 0.0

    @property
    def seconds(self) -> float:
        """Of all calls, estimated from those that were timed."""
        return self._timed_seconds * self.calls / self._timed_calls if self._timed_calls else 0.0

    def is_due(self) -> bool:
        """Counts a call; True when it should be timed."""
        self.calls += 1
        return self.calls % SAMPLE == 1

    def add(self, seconds: float) -> None:
        """The time of a call that was due."""
        self._timed_calls += 1
        self._timed_seconds += seconds


class HookTimes:
    """The times of all hooks of this process, whichever plan they ran in."""

    def __init__(self, now: Callable[[], float] = perf_counter) -> None:
        self._now = now
        self._times: dict[tuple[str, str], HookTime] = {}

    def __iter__(self) -> Iterator[HookTime]:
        return iter(list(self._times.values()))

    def timed(self, plugin: str, hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same implementation with its time taken."""
        time = self._times.setdefault((plugin, hook), HookTime(plugin, hook))
        if hook == "around_upstream":
            return _timed_layer(call, time, self._now)
        return (_timed_async if hook in ASYNC else _timed_plain)(call, time, self._now)


def _timed_plain(call: Callable[..., Any], time: HookTime, now: Callable[[], float]) -> Callable[..., Any]:
    def timed(*args: Any) -> Any:
        if not time.is_due():
            return call(*args)
        since = now()
        try:
            return call(*args)
        finally:
            time.add(now() - since)

    return timed


def _timed_async(call: Callable[..., Awaitable[Any]], time: HookTime, now: Callable[[], float]) -> Callable[..., Any]:
    def timed(*args: Any) -> Awaitable[Any]:
        return taken(*args) if time.is_due() else call(*args)

    async def taken(*args: Any) -> Any:
        since = now()
        try:
            return await call(*args)
        finally:
            time.add(now() - since)

    return timed


def _timed_layer(
    call: Callable[[Exchange, CallNext], Awaitable[Answer]], time: HookTime, now: Callable[[], float]
) -> Callable[..., Any]:
    def timed(exchange: Exchange, call_next: CallNext) -> Awaitable[Answer]:
        return taken(exchange, call_next) if time.is_due() else call(exchange, call_next)

    async def taken(exchange: Exchange, call_next: CallNext) -> Answer:
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
            time.add(now() - since - inner)

    return timed
