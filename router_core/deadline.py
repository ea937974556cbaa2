"""The deadline of the hook that runs: set once it waits, and standing still while it waits for the client's body."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class DeadlinePassed(TimeoutError):
    """The work took longer than it may."""


class _Run:
    """One hook under way. Tasks that it starts inherit the context variable, not the deadline."""

    __slots__ = ("deadline", "is_stopped", "task", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.task = asyncio.current_task()
        self.deadline: asyncio.Timeout | None = None
        self.is_stopped = False


_RUNNING: ContextVar[_Run | None] = ContextVar("running hook", default=None)


async def run_within(timeout_s: float, work: Coroutine[Any, Any, T]) -> T:
    """Awaits ``work``. Most hooks never wait, and cost no timer. Raises DeadlinePassed."""
    run = _Run(timeout_s)
    former = _RUNNING.set(run)
    try:
        try:
            waits_for = work.send(None)
        except StopIteration as done:
            result: T = done.value
            return result
        deadline = run.deadline = asyncio.timeout(None if run.is_stopped else timeout_s)
        try:
            async with deadline:
                return await _Rest(work, waits_for)
        except TimeoutError as error:
            if deadline.expired():
                raise DeadlinePassed(f"no answer within {timeout_s:g} s (router.hook_timeout_s)") from error
            raise
    finally:
        _RUNNING.reset(former)


class _Rest(Generic[T]):
    """A coroutine that waits already, awaited from there on."""

    __slots__ = ("_waits_for", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work, self._waits_for = work, waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        work, waits_for = self._work, self._waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except GeneratorExit:
                    work.close()
                    raise
                except BaseException as error:  # noqa: BLE001  # whatever is thrown in belongs to the work
                    waits_for = work.throw(error)
                else:
                    waits_for = work.send(sent)
        except StopIteration as done:
            result: T = done.value
            return result


@contextmanager
def stopped() -> Iterator[None]:
    """Time spent inside does not count against the running hook, if one runs."""
    run = _RUNNING.get()
    if run is None or run.task is not asyncio.current_task():
        yield
        return
    now = asyncio.get_running_loop().time
    deadline, begun_at = run.deadline, now()
    ends_at = begun_at + run.timeout_s if deadline is None else deadline.when()
    if ends_at is None or (deadline is not None and deadline.expired()):
        yield
        return
    run.is_stopped = True
    if deadline is not None:
        deadline.reschedule(None)
    try:
        yield
    finally:
        run.is_stopped = False
        if run.deadline is not None and not run.deadline.expired():
            run.deadline.reschedule(ends_at + now() - begun_at)
