"""An async hook, asked to its first wait: most answer without one, and cost neither a timer nor a task's turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import CoroutineType
from typing import Any, Final

from router_core.loaded_plugin import FAULTS, Call, LoadedPlugin, failed, refuse
from router_core.types import Answer, Exchange

COROUTINE: Final = CoroutineType
"""What nearly every async hook gives; for others one has to ask more slowly."""


def awaited(call: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """An implementation of an async hook that may be plain, as one that is not."""

    async def call_awaited(*args: Any) -> Any:
        try:
            answer = call(*args)
        except StopIteration as error:
            answer = raising(error)
        return await answer if isinstance(answer, Awaitable) else answer

    return call_awaited


async def raising(error: BaseException | None) -> Any:
    """Raises, where it is awaited, what a hook raised."""
    try:
        assert error is not None
        if isinstance(error, StopIteration):  # leaving a compiled coroutine, it would be taken for what that returned
            raise RuntimeError("a hook raised StopIteration") from error
        raise error
    finally:
        error = None  # which holds this frame


def coroutine_of(work: Any) -> Coroutine[Any, Any, Any] | None:
    """What a hook gave to be awaited, be it a future; None for an answer of a plain function."""
    if isinstance(work, Coroutine):
        return work
    return _awaiting(work) if isinstance(work, Awaitable) else None


async def _awaiting(work: Awaitable[Any]) -> Any:
    return await work


ENDED: Final = object()


class Waits:
    """A hook after its first step, and what it waits for."""

    __slots__ = ("waits_for", "work")

    def __init__(self, work: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self.work, self.waits_for = work, waits_for


def begun(plugin: LoadedPlugin, hook: str, work: Any) -> Any:
    """Runs what an async hook gave to its first wait: its answer, or `Waits` where there is one, as seldom."""
    if (coroutine := coroutine_of(work)) is None:
        return work
    try:
        return Waits(coroutine, coroutine.send(None))
    except StopIteration as done:
        return done.value
    except FAULTS as error:
        return failed(plugin, hook, error)


class Turn:
    """Whose turn it is to answer, and who did. (Set by the class: made for nearly every request.)"""

    plugin: LoadedPlugin | None = None
    answer: Answer | None = None
    has_waited: bool = False


def next_given(hooks: Iterator[Call], exchange: Exchange) -> tuple[LoadedPlugin, Any] | None:
    """The next plugin that gives something for an answer, be it to be awaited, and what."""
    for plugin, call in hooks:
        try:
            work = call(exchange)
        except FAULTS as error:
            work = failed(plugin, "request_start", error)
        if work is not None:
            return plugin, work
    return None


async def ask_in_turn(turn: Turn, hooks: Iterator[Call], exchange: Exchange, plugin: LoadedPlugin, work: Any) -> None:
    """Awaits what a plugin gave for its answer, then asks the next one, until one has answered or waited.

    All in one coroutine: what ends in it costs no exception for its answer.
    """
    while True:
        turn.plugin = plugin
        try:
            if type(work) is COROUTINE or isinstance(work, Awaitable):
                work = await work
        except FAULTS as error:
            work = failed(plugin, "request_start", error)
        if isinstance(work, Answer):
            turn.answer = work
            return
        if work is not None:
            refuse(plugin, "request_start", f"answered {work!r}, not an Answer")
            work = None
        if turn.has_waited or (given := next_given(hooks, exchange)) is None:
            return
        plugin, work = given
