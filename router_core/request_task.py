"""The task of a request on the fast front: asyncio's contract for tasks, at less than half its cost.

asyncio's own task begins, goes on and ends by a callback of the event loop each, with an object and a context of its
own. These begin and go on together, all of a turn in one callback (a `Lane`), and are told so by whom they wait for.
For everything else that a request may wait for one does what asyncio's does; how a task of one's own takes part
(``asyncio.current_task``, and with it timeouts and task groups) is in asyncio's documentation, "Extending".

All of a turn together is also what the processor's caches like: to read, run and write one request after the other,
in a call each, took a tenth more where it was measured.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

ENTER: Final[Any] = asyncio._enter_task
LEAVE: Final[Any] = asyncio._leave_task
NEXT: Final[Any] = next
ENDED: Final = object()


class _Running:
    """The request's task whose step runs now, be it in another thread, which has a loop of its own; mostly None else.

    Nothing may rest on it being right: in a task that was begun at once (Python 3.12) it is that of who began it.
    """

    __slots__ = ("task",)

    def __init__(self) -> None:
        self.task: RequestTask | None = None


RUNNING: Final = _Running()


class Lane:
    """Tasks of requests that go on in the next turn of the loop, in order."""

    __slots__ = ("_ready",)

    def __init__(self) -> None:
        self._ready: list[RequestTask] = []

    def add(self, task: RequestTask, loop: asyncio.AbstractEventLoop) -> None:
        if not self._ready:
            loop.call_soon(self._run)
        self._ready.append(task)

    def _run(self) -> None:
        ready, self._ready = self._ready, []
        left = iter(ready)
        try:
            for task in left:
                task.step(None)
        finally:
            for other in left:  # there are some only where a step raised: that is no fault of theirs
                other.begin()


class RequestTask(asyncio.BaseProtocol):
    """Runs a coroutine in a context. (Of a base that asyncio has anyway: compiled, weak references to it need one.)"""

    _asyncio_future_blocking: bool = False

    def __init__(
        self,
        work: Coroutine[Any, Any, None],
        loop: asyncio.AbstractEventLoop,
        lane: Lane,
        context: contextvars.Context,
        on_end: Callable[[RequestTask], None],
    ) -> None:
        """``on_end`` is called when it has ended, before those who asked later."""
        self._coroutine = work
        self._steps: Generator[Any, Any, None] = work.__await__()
        self._loop = loop
        self._lane = lane
        self._context = context
        self._on_end: Callable[[RequestTask], None] | None = on_end
        self._callbacks: list[tuple[Callable[[Any], object], contextvars.Context]] = []
        self._name = "request"
        self._is_done = False
        self._is_cancelled = False
        self._error: BaseException | None = None
        self._cancellations = 0
        self._must_cancel = False
        self._cancel_message: Any = None
        self._fut_waiter: Any = None
        """What it waits for; the name is asyncio's, which others look at."""
        self._told_of: Any = None
        """A future that is not asked for a callback: who sets its result calls `go_on`."""

    # ----------------------------------------------------------------------------------------------- for who drives it
    def begin(self) -> None:
        """Runs it, in the next turn."""
        self._lane.add(self, self._loop)

    def expect(self, future: asyncio.Future[Any]) -> None:
        """The caller, which is this task, is about to await ``future``; who sets its result calls `go_on`."""
        self._told_of = future

    def go_on(self, future: asyncio.Future[Any]) -> None:
        """``future`` has its result: runs on in the next turn, if that is what it waits for."""
        if self._fut_waiter is future and self._told_of is future:
            self._lane.add(self, self._loop)

    # ------------------------------------------------------------------------------------------------------- its steps
    def step(self, error: BaseException | None) -> None:
        """Runs it to its next wait; ``error`` is raised where it waits now."""
        if self._must_cancel:
            self._must_cancel = False
            if not isinstance(error, CancelledError):
                error = self._cancellation()
        self._fut_waiter = self._told_of = None
        ENTER(self._loop, self)
        RUNNING.task = self
        waits_for: Any = ENDED
        failure: BaseException | None = None
        try:
            if error is None:
                waits_for = self._context.run(NEXT, self._steps, ENDED)
            else:
                waits_for = self._context.run(self._steps.throw, error)
        except StopIteration:
            pass
        except BaseException as raised:  # noqa: BLE001  # kept for who asks
            failure = raised
        finally:
            error = None  # which holds this frame
            RUNNING.task = None
            LEAVE(self._loop, self)
        if failure is not None or waits_for is ENDED:
            try:
                self._end(failure)
            finally:
                failure = None  # the same
        elif waits_for is not None and self._told_of is waits_for:
            waits_for._asyncio_future_blocking = False
            self._wait(waits_for)
        else:
            self._wait_as_asyncio(waits_for)

    def _wait(self, future: Any) -> None:
        self._fut_waiter = future
        if self._must_cancel and self._cancel_waiter(self._cancel_message):  # else it is raised in the next step
            self._must_cancel = False

    def _wait_as_asyncio(self, waits_for: Any) -> None:
        if waits_for is None:  # a bare yield: others first
            self._loop.call_soon(self.step, None)
            return
        try:
            if (fault := self._fault_of(waits_for)) is None:
                waits_for._asyncio_future_blocking = False
                waits_for.add_done_callback(self._is_set)
        except Exception as error:  # noqa: BLE001  # of what is no future, but looks like one
            fault = f"a bad yield: {error!r}"
        if fault is None:
            self._wait(waits_for)
        else:
            self._loop.call_soon(self.step, RuntimeError(f"a request's task got {fault}"))

    def _fault_of(self, waits_for: Any) -> str | None:
        """Why one cannot wait for it."""
        if not getattr(waits_for, "_asyncio_future_blocking", None):
            return f"a bad yield: {waits_for!r}"
        if waits_for is self:
            return "itself to wait for"
        if waits_for.get_loop() is not self._loop:
            return f"a future of a different loop: {waits_for!r}"
        return None

    def _is_set(self, future: Any) -> None:
        if self._fut_waiter is not future:
            return
        error: BaseException | None = None
        try:
            future.result()
        except BaseException as raised:  # noqa: BLE001  # whatever it is, it is for who waits
            error = raised
        future = None  # which may hold the error, and that this frame
        try:
            self.step(error)
        finally:
            error = None  # the same

    def _end(self, failure: BaseException | None) -> None:
        self._is_done = True
        if failure is not None:
            self._is_cancelled = isinstance(failure, CancelledError)
            self._error = failure
            if failure.__traceback__ is not None:
                failure.__traceback__ = failure.__traceback__.tb_next  # without the frame of the step, which holds this
            if isinstance(failure, KeyboardInterrupt):
                self._loop.call_soon(_interrupt)
        on_end, self._on_end = self._on_end, None
        if self._callbacks:
            callbacks, self._callbacks = self._callbacks, []
            for callback, context in callbacks:
                self._loop.call_soon(callback, self, context=context)
        if on_end is not None:
            on_end(self)

    # ------------------------------------------------------------------------------------------------- as asyncio.Task
    def cancel(self, msg: Any = None) -> bool:
        """Asks it to stop: CancelledError is raised where it waits."""
        if self._is_done:
            return False
        self._cancellations += 1
        if not self._cancel_waiter(msg):
            self._must_cancel = True
            self._cancel_message = msg
        return True

    def _cancel_waiter(self, msg: Any) -> bool:
        future = self._fut_waiter
        if future is None or not future.cancel(msg=msg):
            return False
        if future is self._told_of:  # nobody else will tell of it
            self._loop.call_soon(self._is_set, future)
        return True

    def _cancellation(self) -> CancelledError:
        message, self._cancel_message = self._cancel_message, None
        return CancelledError() if message is None else CancelledError(message)

    def cancelling(self) -> int:
        return self._cancellations

    def uncancel(self) -> int:
        if self._cancellations > 0:
            self._cancellations -= 1
            if not self._cancellations:
                self._must_cancel = False  # as asyncio does since 3.13
        return self._cancellations

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return self._is_cancelled

    def exception(self) -> BaseException | None:
        """What ended it. Raises CancelledError, and InvalidStateError while it runs."""
        if not self._is_done:
            raise asyncio.InvalidStateError("the request has not ended")
        if self._is_cancelled:
            raise CancelledError
        return self._error

    def result(self) -> None:
        """Raises what `exception` gives or raises."""
        if (error := self.exception()) is not None:
            raise error

    def __await__(self) -> Generator[Any, None, None]:
        """For a task of a plugin that waits for the end of the request; so it is a future as well."""
        if not self._is_done:
            self._asyncio_future_blocking = True
            yield self
        self.result()

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Any = None) -> None:
        if self._is_done:
            self._loop.call_soon(callback, self, context=context)
        else:
            self._callbacks.append((callback, contextvars.copy_context() if context is None else context))

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        before = len(self._callbacks)
        self._callbacks = [each for each in self._callbacks if each[0] != callback]
        return before - len(self._callbacks)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def get_coro(self) -> Coroutine[Any, Any, None]:
        return self._coroutine

    def get_context(self) -> contextvars.Context:
        return self._context

    def get_name(self) -> str:
        return self._name

    def set_name(self, name: object) -> None:
        self._name = str(name)

    def __repr__(self) -> str:
        state = "cancelled" if self._is_cancelled else "done" if self._is_done else "pending"
        return f"<RequestTask {state} name={self._name!r} coro={self._coroutine!r}>"


def _interrupt() -> None:
    raise KeyboardInterrupt
