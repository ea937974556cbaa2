"""A request's own task keeps asyncio's contract: what a hook may ask of ``asyncio.current_task()`` and wait for."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import pytest

from router_core import Answer, CallNext, Exchange, hookimpl
from router_core.request_task import Lane, RequestTask
from router_core.testing import ScriptedWorker, exchange_once, reply
from router_core.testing.router import running_router

Serve = Callable[..., Awaitable[Any]]
Begin = Callable[[Coroutine[Any, Any, None]], Any]


@pytest.fixture(params=["ours", "asyncio's"])
def begin(request: pytest.FixtureRequest) -> Begin:
    """Begins a task: asyncio's own shows that the contract is asked for as it is."""
    lane = Lane()

    def ours(work: Coroutine[Any, Any, None]) -> RequestTask:
        loop = asyncio.get_running_loop()
        task = RequestTask(work, loop, lane, contextvars.copy_context(), lambda _: None)
        task.begin()
        return task

    return ours if request.param == "ours" else asyncio.create_task


class Yields:
    def __init__(self, what: object) -> None:
        self.what = what

    def __await__(self) -> Generator[Any, Any, None]:
        yield self.what


async def ended(task: Any) -> None:
    await asyncio.wait({task}, timeout=3.0)
    assert task.done()


async def test_a_cancellation_that_what_it_waits_for_refuses_is_raised_all_the_same(begin: Begin) -> None:
    async def work() -> None:
        done = asyncio.get_running_loop().create_future()
        done.set_result(1)
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.gather(done)  # whose children are done: it cannot be cancelled any more
        await asyncio.sleep(0.1)

    task = begin(work())
    await ended(task)
    assert task.cancelled()


async def test_a_future_of_another_loop_is_refused(begin: Begin) -> None:
    other = asyncio.new_event_loop()

    async def work() -> None:
        with pytest.raises(RuntimeError, match="different loop"):
            await other.create_future()

    task = begin(work())
    await ended(task)
    assert task.exception() is None
    other.close()


async def test_others_can_wait_for_its_end(begin: Begin) -> None:
    async def work() -> None:
        await asyncio.sleep(0.01)

    task = begin(work())
    await asyncio.gather(task, asyncio.shield(task), asyncio.wait_for(task, 3.0))
    await task
    assert task.done()
    assert asyncio.isfuture(task)


async def test_who_waits_for_it_gets_what_it_raised(begin: Begin) -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise ValueError("this")

    task = begin(work())
    with pytest.raises(ValueError, match="this"):
        await task


async def test_it_cannot_wait_for_itself(begin: Begin) -> None:
    async def work() -> None:
        current: Any = asyncio.current_task()
        with pytest.raises(RuntimeError):
            await current

    task = begin(work())
    await ended(task)
    assert task.exception() is None


async def test_a_callback_runs_in_the_context_of_who_added_it(begin: Begin) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []

    async def work() -> None:
        variable.set("set")
        current: Any = asyncio.current_task()
        current.add_done_callback(lambda _: seen.append(variable.get()))
        await asyncio.sleep(0)

    await ended(begin(work()))
    await asyncio.sleep(0)
    assert seen == ["set"]


class NoRepr:
    def __repr__(self) -> str:
        raise ValueError("no repr")


class HalfFuture:
    _asyncio_future_blocking = True


@pytest.mark.parametrize("rubbish", [NoRepr(), HalfFuture(), 5], ids=["repr", "half", "number"])
async def test_rubbish_that_one_waits_for_is_told_and_spoils_no_other_request(rubbish: object) -> None:
    loop, lane = asyncio.get_running_loop(), Lane()
    told: list[BaseException] = []

    async def bad() -> None:
        try:
            await Yields(rubbish)
        except RuntimeError as error:
            told.append(error)

    async def good() -> None:
        await asyncio.sleep(0)

    works = [bad(), good(), good()]
    tasks: list[Any] = [RequestTask(w, loop, lane, contextvars.copy_context(), lambda _: None) for w in works]
    for task in tasks:
        task.begin()
    await asyncio.wait(tasks, timeout=1.0)
    assert [task.done() for task in tasks] == [True] * 3
    assert len(told) == 1


async def test_a_step_that_raises_takes_no_other_with_it() -> None:
    loop, lane = asyncio.get_running_loop(), Lane()
    faults: list[Any] = []
    loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))

    def on_end(_: RequestTask) -> None:
        raise ValueError("this")

    async def work() -> None:
        pass

    first = RequestTask(work(), loop, lane, contextvars.copy_context(), on_end)
    second: Any = RequestTask(work(), loop, lane, contextvars.copy_context(), lambda _: None)
    first.begin()
    second.begin()
    await asyncio.wait({second}, timeout=1.0)
    assert second.done()
    assert [str(fault) for fault in faults] == ["this"]


async def test_a_router_in_another_thread_takes_no_request_of_this_one_for_its_own() -> None:
    """Its plugin makes attempts in tasks of its own, while a request of this router runs a plain hook."""
    ready, stop, port = threading.Event(), threading.Event(), [0]

    class InTask:
        @hookimpl
        async def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Answer:
            return await asyncio.ensure_future(call_next(exchange))

    class Asks:
        @hookimpl
        def request_start(self, exchange: Exchange) -> Answer | None:
            async def ask() -> None:
                assert (await exchange_once(port[0], json={})).status == 200

            thread = threading.Thread(target=asyncio.run, args=(ask(),))
            thread.start()
            thread.join(5.0)
            return None

    async def other() -> None:
        async with ScriptedWorker() as worker, running_router([worker.url], enabled=(), classes=[InTask]) as router:
            worker.handler = reply()
            port[0] = router.port
            ready.set()
            await asyncio.to_thread(stop.wait, 20.0)

    thread = threading.Thread(target=asyncio.run, args=(other(),))
    thread.start()
    try:
        await asyncio.to_thread(ready.wait, 5.0)
        async with ScriptedWorker() as worker, running_router([worker.url], enabled=(), classes=[Asks]) as router:
            worker.handler = reply()
            assert (await exchange_once(router.port, json={})).status == 200
    finally:
        stop.set()
        await asyncio.to_thread(thread.join, 10.0)
