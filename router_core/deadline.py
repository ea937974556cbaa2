"""The deadline of a hook that waits: set when it does, and standing still while it waits for the client's body."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class DeadlinePassed(TimeoutError):
    """The work took longer than it may."""


class _Deadline:
    __slots__ = ("timeout", "timeout_s")

    def __init__(self, timeout_s: float, *, is_stopped: bool) -> None:
        self.timeout_s = timeout_s
        self.timeout = asyncio.timeout(None if is_stopped else timeout_s)


_DEADLINES: dict[asyncio.Task[Any], _Deadline] = {}
"""Of the innermost hook that waits in a task; a task that a hook starts has none."""
_STOPPED: set[asyncio.Task[Any]] = set()
"""Tasks that wait for their client."""


async def finish_within(timeout_s: float, work: Coroutine[Any, Any, T], waits_for: Any) -> T:
    """Awaits a hook that was started by ``work.send(None)`` and waits now. Raises DeadlinePassed.

    Most hooks never wait: they are over after that first step, and cost no timer.
    """
    task = _current_task()
    deadline = _Deadline(timeout_s, is_stopped=task in _STOPPED)
    outer, _DEADLINES[task] = _DEADLINES.get(task), deadline
    try:
        async with deadline.timeout:
            return await _Rest(work, waits_for)
    except TimeoutError as error:
        if deadline.timeout.expired():
            raise DeadlinePassed(f"no answer within {timeout_s:g} s (router.hook_timeout_s)") from error
        raise
    finally:
        if outer is None:
            del _DEADLINES[task]
        else:
            _DEADLINES[task] = outer


async def within(timeout_s: float, work: Awaitable[T]) -> T:
    """Awaits ``work`` in this task. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        return await work


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None  # a coroutine that runs has a task
    return task


@contextmanager
def stopped() -> Iterator[None]:
    """Time spent inside does not count against the running hook, if one runs."""
    task = _current_task()
    deadline = _DEADLINES.get(task)
    ends_at = None if deadline is None else deadline.timeout.when()
    if task in _STOPPED or (deadline is not None and (ends_at is None or deadline.timeout.expired())):
        yield
        return
    now = asyncio.get_running_loop().time
    begun_at = now()
    _STOPPED.add(task)
    if deadline is not None:
        deadline.timeout.reschedule(None)
    try:
        yield
    finally:
        _STOPPED.discard(task)
        begun = _DEADLINES.get(task)  # by a hook whose first step brought it here
        if begun is not None and begun is not deadline and not begun.timeout.expired():
            begun.timeout.reschedule(now() + begun.timeout_s)
        if deadline is not None and ends_at is not None and not deadline.timeout.expired():
            deadline.timeout.reschedule(ends_at + now() - begun_at)


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
