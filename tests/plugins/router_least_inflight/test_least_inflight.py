"""The least loaded worker gets the next request."""

import asyncio
import contextlib
from collections import Counter

import pytest

from router_core.testing import RawAnswer, ScriptedWorker, exchange_once
from router_core.testing.router import RunningRouter, running_router

ASK = {"text": "hi"}


async def ask(router: RunningRouter) -> RawAnswer:
    return await exchange_once(router.port, json=ASK, timeout_s=20)


async def test_requests_one_after_another_spread_over_idle_workers() -> None:
    """po-tie"""
    async with contextlib.AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker()) for _ in range(4)]
        urls = [worker.url for worker in workers]
        router = await stack.enter_async_context(running_router(urls, enabled=("least_inflight",)))
        served = Counter([(await ask(router)).get("x-router-worker") for _ in range(100)])
        assert sorted(served) == sorted(urls)
        assert all(15 <= count <= 35 for count in served.values())


async def test_requests_at_the_same_time_spread_evenly() -> None:
    async with ScriptedWorker() as a, ScriptedWorker() as b, ScriptedWorker() as c:
        workers = (a, b, c)
        async with running_router([w.url for w in workers], enabled=("least_inflight",)) as router:
            for worker in workers:
                worker.hold()
            running = [asyncio.create_task(ask(router)) for _ in range(30)]
            for worker in workers:
                await worker.wait_for_requests(10)
            for worker in workers:
                worker.release()
            assert {answer.status for answer in await asyncio.gather(*running)} == {200}
            assert [len(worker.requests) for worker in workers] == [10, 10, 10]


async def test_a_worker_that_is_slow_gets_less() -> None:
    async with (
        ScriptedWorker() as slow,
        ScriptedWorker() as quick,
        running_router([slow.url, quick.url], enabled=("least_inflight",)) as router,
    ):
        slow.hold()
        running = [asyncio.create_task(ask(router)) for _ in range(2)]
        await slow.wait_for_requests(1)
        await quick.wait_for_requests(1)
        for _ in range(6):
            assert (await ask(router)).get("x-router-worker") == quick.url
        slow.release()
        await asyncio.gather(*running)


@pytest.mark.parametrize("leaves", [3, 8])
async def test_requests_that_were_given_up_count_no_longer(leaves: int) -> None:
    async with (
        ScriptedWorker() as a,
        ScriptedWorker() as b,
        running_router([a.url, b.url], enabled=("least_inflight",)) as router,
    ):
        for worker in (a, b):
            worker.hold()
        running = [asyncio.create_task(ask(router)) for _ in range(16)]
        await a.wait_for_requests(8)
        await b.wait_for_requests(8)
        for task in running[:leaves]:
            task.cancel()
        await asyncio.gather(*running[:leaves], return_exceptions=True)
        table = router.application.workers
        while sum(worker.inflight for worker in table) > 16 - leaves:  # noqa: ASYNC110  # the router sees them leave
            await asyncio.sleep(0)
        more = [asyncio.create_task(ask(router)) for _ in range(leaves)]
        while sum(worker.inflight for worker in table) < 16:  # noqa: ASYNC110  # and the others come
            await asyncio.sleep(0)
        assert [worker.inflight for worker in table] == [8, 8]
        for worker in (a, b):
            worker.release()
        await asyncio.gather(*running[leaves:], *more)
        assert [worker.inflight for worker in table] == [0, 0]
