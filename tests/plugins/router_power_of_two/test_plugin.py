"""The better of two random workers."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

from router_power_of_two.plugin import PowerOfTwo, winner

from router_core import Worker
from router_core.testing import ScriptedWorker, exchange_once
from router_core.testing.router import running_router


def workers_with(*inflight: int) -> list[Worker]:
    workers = []
    for number, count in enumerate(inflight):
        url = f"http://10.0.0.{number}"
        worker = Worker(id=url, base_id=url, url=url, key=url, base_url=url, dp_rank=None, generation=1)
        worker.count(count)
        workers.append(worker)
    return workers


def test_the_most_loaded_worker_is_never_the_winner() -> None:
    workers = workers_with(3, 9, 0, 5)
    draws = random.Random(1)
    won = [winner(workers, draws) for _ in range(400)]
    assert set(won) == {workers[0], workers[2], workers[3]}
    assert won.count(workers[2]) > won.count(workers[0]) > won.count(workers[3])


def test_both_of_a_pair_are_looked_at() -> None:
    busy, idle = workers_with(1, 0)
    assert {winner([busy, idle], random.Random(seed)) for seed in range(20)} == {idle}


def test_one_worker_alone_wins() -> None:
    (only,) = workers_with(7)
    assert winner([only], random.Random(0)) is only


def test_of_equals_the_one_picked_longest_ago_wins() -> None:
    first, second = workers_with(2, 2)
    first.last_pick, second.last_pick = 5, 4
    assert winner([first, second], random.Random(0)) is second


def test_a_seed_repeats_the_draws() -> None:
    workers = workers_with(*range(10))
    told = [[PowerOfTwo(PowerOfTwo.Settings(seed=3)).score_workers(workers) for _ in range(1)] for _ in range(2)]
    assert told[0] == told[1]
    assert list(told[0][0].values()) == [1.0]


async def test_requests_spread_over_idle_workers_and_avoid_a_held_one() -> None:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker()) for _ in range(4)]
        tables = {"power_of_two": {"seed": 7}}
        urls = [worker.url for worker in workers]
        router = await stack.enter_async_context(running_router(urls, enabled=["power_of_two"], plugins=tables))
        for _ in range(100):
            assert (await exchange_once(router.port, json={"text": "hi"})).status == 200
        assert all(10 <= len(worker.requests) <= 40 for worker in workers)
        before = len(workers[0].requests)
        workers[0].hold()
        asking = []
        while len(workers[0].requests) == before:
            asking.append(asyncio.create_task(exchange_once(router.port, json={"text": "hi"})))
            await asyncio.wait(asking[-1:], timeout=0.05)
        for _ in range(50):
            await exchange_once(router.port, json={"text": "hi"})
        assert len(workers[0].requests) == before + 1
        workers[0].release()
        await asyncio.gather(*asking)


def test_every_pair_of_different_workers_is_drawn() -> None:
    workers = workers_with(0, 1, 2, 3)
    draws = random.Random(2)
    won = [winner(workers, draws) for _ in range(6000)]
    assert [round(won.count(worker) / 1000) for worker in workers] == [3, 2, 1, 0]
