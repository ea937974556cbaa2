"""Plugins that do nothing, at one hook or at eight, for ``--middleware-paths tests.bench.load.noop_plugins:First``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from router_core import Answer, Attempt, Exchange, Outcome, Worker, hookimpl


class RequestStart:
    @hookimpl
    async def request_start(self, exchange: Exchange) -> Answer | None:
        return None


class AroundUpstream:
    @hookimpl
    async def around_upstream(self, exchange: Exchange, call_next: Callable[[Exchange], Awaitable[Answer]]) -> Answer:
        return await call_next(exchange)


class FilterWorkers:
    @hookimpl
    def filter_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> None:
        return None


class ScoreWorkers:
    @hookimpl
    def score_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> None:
        return None


class AttemptStart:
    @hookimpl
    async def attempt_start(self, exchange: Exchange, attempt: Attempt) -> None:
        return None


class ResponseStart:
    @hookimpl
    async def response_start(self, exchange: Exchange, answer: Answer) -> None:
        return None


class ResponseChunk:
    @hookimpl
    def response_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        return None


class ResponseEnd:
    @hookimpl
    def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
        return None


HOOKS = (
    RequestStart,
    AroundUpstream,
    FilterWorkers,
    ScoreWorkers,
    AttemptStart,
    ResponseStart,
    ResponseChunk,
    ResponseEnd,
)


class All(*HOOKS):  # type: ignore[misc]  # the list above is the point
    """At eight hooks."""


def _three(kind: type) -> None:
    """A plugin is named by its class: three of a kind are three classes."""
    for number in ("First", "Second", "Third"):
        name = number + kind.__name__
        globals()[name] = type(name, (kind,), {})


for _kind in (*HOOKS, All):
    _three(_kind)


def paths(kind: str) -> list[str]:
    """The three plugins at one hook, or at all eight (``All``)."""
    return [f"{__name__}:{number}{kind}" for number in ("First", "Second", "Third")]
