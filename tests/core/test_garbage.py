"""What an exchange makes is freed when it ends: the collector comes by too seldom for cycles (`garbage.THRESHOLDS`).

Garbage that survives two looks of the collector is kept for twenty million more objects: hundreds of thousands of
requests, about 2 GB.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest

from router_core import Answer, CallNext, Exchange, Reject, hookimpl
from router_core.testing import Faults, NoAnswerError, RawClient, ScriptedWorker, build_request, exchange_once, reply
from router_core.testing.router import RunningRouter, running_router
from tests.garbage import garbage

ASK = {"text": "hi"}
COUNT = 20
Load = Callable[[RunningRouter, ScriptedWorker], Awaitable[None]]


async def whole(router: RunningRouter, worker: ScriptedWorker) -> None:
    """Each on a connection of its own."""
    for _ in range(COUNT):
        assert (await exchange_once(router.port, json=ASK)).status == 200


async def kept_alive(router: RunningRouter, worker: ScriptedWorker) -> None:
    async with RawClient(router.port) as client:
        for _ in range(COUNT):
            assert (await client.request("POST", "/generate", json=ASK)).status == 200


async def streamed(router: RunningRouter, worker: ScriptedWorker) -> None:
    for _ in range(COUNT):
        assert (await exchange_once(router.port, json={**ASK, "stream": True})).clean


async def uploaded(router: RunningRouter, worker: ScriptedWorker) -> None:
    """Bodies that come piece by piece, and stop for want of room."""
    worker.handler = reply(b"{}")
    for _ in range(COUNT):
        assert (await exchange_once(router.port, body=b" " * 700_000)).status == 200


async def connections_end(router: RunningRouter, worker: ScriptedWorker) -> None:
    """The worker closes its connection after each answer."""
    worker.fault(Faults.close_after_answer(), times=None)
    await whole(router, worker)


async def refused(router: RunningRouter, worker: ScriptedWorker) -> None:
    for _ in range(COUNT):
        headers = {"x-router-plugins": "+nonsense"}
        assert (await exchange_once(router.port, json=ASK, headers=headers)).status == 400


async def own_routes(router: RunningRouter, worker: ScriptedWorker) -> None:
    for _ in range(COUNT):
        assert (await exchange_once(router.port, "GET", "/workers")).status == 200


async def worker_lost(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.fault(Faults.close_before_answer(), times=None)
    for _ in range(COUNT):
        assert (await exchange_once(router.port, json=ASK)).status == 502


async def answer_cut(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.fault(Faults.close_amid(after_bytes=20), times=None)
    for _ in range(COUNT):
        try:
            assert not (await exchange_once(router.port, json=ASK)).clean
        except NoAnswerError:
            continue


async def client_left(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.hold()
    for _ in range(COUNT):
        worker.requests.clear()
        async with RawClient(router.port) as client:
            await client.send(build_request(json=ASK))
            await worker.wait_for_requests(1)
    worker.release()


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    """pytest keeps what was logged, and by it exchanges that would be garbage."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("front", ["auto", "asgi"])
@pytest.mark.parametrize(
    "load",
    [
        whole,
        kept_alive,
        streamed,
        uploaded,
        connections_end,
        refused,
        own_routes,
        worker_lost,
        answer_cut,
        client_left,
    ],
    ids=lambda load: load.__name__,
)
async def test_nothing_of_an_exchange_is_left_to_the_collector(load: Load, front: str) -> None:
    async with (
        ScriptedWorker() as worker,
        running_router([worker.url], enabled=("metrics", "retry", "least_inflight"), router={"front": front}) as router,
    ):
        worker.say("some words", times=None)
        await load(router, worker)  # what is made once is made now
        running = router.application.proxy.running
        with garbage() as found:
            await load(router, worker)
            async with asyncio.timeout(10):
                while running:  # noqa: ASYNC110  # nothing tells that the last exchange has ended
                    await asyncio.sleep(0)
            await asyncio.sleep(0.05)
        assert {name: count for name, count in found.items() if count >= COUNT} == {}


# ------------------------------------------------------------------------------------------------ hooks that go wrong
async def raises() -> None:
    raise ValueError("x")


async def raises_later() -> None:
    await asyncio.sleep(0)
    await raises()


async def refuses() -> None:
    raise Reject(429, "enough", "that is enough")


async def awaits_what_fails() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_exception, ValueError("x"))
    await future


async def awaits_a_task_that_fails() -> None:
    await asyncio.create_task(raises())


async def takes_too_long() -> None:
    await asyncio.sleep(10)


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


Fault = Callable[[], Awaitable[None]]


def failing(hook: str, fault: Fault) -> type:
    """A plugin that goes wrong at a hook; ``around_upstream`` before, and ``after_upstream`` after its call."""

    @hookimpl
    async def around_upstream(self: object, exchange: Exchange, call_next: CallNext) -> Answer:
        if hook == "around_upstream":
            await fault()
        answer = await call_next(exchange)
        await fault()
        return answer

    async def told(self: object, exchange: Exchange) -> None:
        await fault()

    told.__name__ = hook
    call = around_upstream if hook.endswith("_upstream") else hookimpl(told)
    return type("Failing", (), {call.__name__: call})


FAULTS = (raises, raises_later, refuses, awaits_what_fails, awaits_a_task_that_fails, takes_too_long, cancels_itself)
HOOKS = ("request_start", "around_upstream", "after_upstream", "attempt_start", "response_start")
WRONG = [
    (hook, fault)
    for hook in HOOKS
    for fault in FAULTS
    if fault is not takes_too_long or not hook.endswith("_upstream")  # a layer may take as long as a generation does
]


@pytest.mark.parametrize(("hook", "fault"), WRONG, ids=[f"{hook}-{fault.__name__}" for hook, fault in WRONG])
async def test_nothing_of_an_exchange_whose_hook_goes_wrong_is_left_to_the_collector(hook: str, fault: Fault) -> None:
    """Not its frames either, which a trace holds, and with them the body."""
    async with (
        ScriptedWorker() as worker,
        running_router(
            [worker.url],
            enabled=("metrics", "retry", "least_inflight"),
            classes=[failing(hook, fault)],
            router={"hook_timeout_s": 0.01},
        ) as router,
    ):
        worker.say("some words", times=None)
        statuses: list[int] = []

        async def load() -> None:
            for _ in range(COUNT):
                with suppress(NoAnswerError):
                    statuses.append((await exchange_once(router.port, json=ASK)).status)

        await load()
        with garbage() as found:
            await load()
            await asyncio.sleep(0.05)
        wanted = {refuses: [429] * 2 * COUNT, cancels_itself: []}.get(fault, [500] * 2 * COUNT)
        assert statuses == wanted
        assert {name: count for name, count in found.items() if count >= COUNT} == {}
