"""Every worker in its turn, whatever its load."""

import asyncio

from router_core import hookimpl
from router_core.testing import ScriptedWorker, exchange_once
from router_core.testing.router import RunningRouter, running_router

ASK = {"text": "hi"}


async def served_by(router: RunningRouter, count: int) -> list[str | None]:
    return [(await exchange_once(router.port, json=ASK)).get("x-router-worker") for _ in range(count)]


async def test_workers_take_turns() -> None:
    async with ScriptedWorker() as a, ScriptedWorker() as b, ScriptedWorker() as c:
        urls = [a.url, b.url, c.url]
        async with running_router(urls, enabled=("round_robin",)) as router:
            assert await served_by(router, 9) == urls * 3


async def test_load_does_not_change_the_turns() -> None:
    async with (
        ScriptedWorker() as busy,
        ScriptedWorker() as idle,
        running_router([busy.url, idle.url], enabled=("round_robin", "least_inflight")) as router,
    ):
        busy.hold()
        running = []
        for turn in range(1, 4):
            running.append(asyncio.create_task(exchange_once(router.port, json=ASK)))
            await busy.wait_for_requests(turn)
            assert await served_by(router, 1) == [idle.url]
        busy.release()
        await asyncio.gather(*running)


async def test_a_worker_that_comes_is_next() -> None:
    async with (
        ScriptedWorker() as a,
        ScriptedWorker() as b,
        ScriptedWorker() as late,
        running_router([a.url, b.url], enabled=("round_robin",)) as router,
    ):
        assert await served_by(router, 3) == [a.url, b.url, a.url]
        router.application.workers.add(late.url)
        assert await served_by(router, 4) == [late.url, b.url, a.url, late.url]


async def test_scores_of_others_do_not_count_and_filters_do() -> None:
    class FirstOnly:
        @hookimpl
        def score_workers(self, workers: list[object]) -> dict[object, float]:
            return {workers[0]: 1.0}

    class NotTheLast:
        @hookimpl
        def filter_workers(self, workers: list[object]) -> list[object]:
            return workers[:-1]

    async with (
        ScriptedWorker() as a,
        ScriptedWorker() as b,
        ScriptedWorker() as c,
        running_router([a.url, b.url, c.url], enabled=("round_robin",), classes=(FirstOnly, NotTheLast)) as router,
    ):
        assert await served_by(router, 4) == [a.url, b.url] * 2
