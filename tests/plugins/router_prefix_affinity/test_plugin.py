"""Prefix affinity over real HTTP."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import orjson
import pytest

from router_core import ConfigError, Worker
from router_core.testing import RawAnswer, ScriptedWorker, exchange_once
from router_core.testing.router import RunningRouter, running_router

LONG = "You are a helpful agent. " * 200


class Pool:
    """A router in front of workers."""

    def __init__(self, router: RunningRouter, workers: list[ScriptedWorker]) -> None:
        self.router, self.workers = router, workers

    async def ask(self, text: str = "", *, target: str = "/generate", **body: Any) -> RawAnswer:
        return await exchange_once(self.router.port, target=target, json=body or {"text": text})

    async def served_by(self, text: str = "", **body: Any) -> int:
        answer = await self.ask(text, **body)
        assert answer.status == 200, answer.body
        return [worker.url for worker in self.workers].index(answer.get("x-router-worker") or "")

    def worker(self, number: int) -> Worker:
        found = self.router.application.workers.get(self.workers[number].url)
        assert found is not None
        return found

    def metric(self, name: str) -> int:
        page = self.router.application.outside.metrics().splitlines()
        return next(int(line.rpartition(" ")[2]) for line in page if line.startswith(name))


@asynccontextmanager
async def running_pool(
    count: int = 3, *, enabled: Sequence[str] = ("prefix_affinity", "least_inflight"), **settings: Any
) -> AsyncIterator[Pool]:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker()) for _ in range(count)]
        urls = [worker.url for worker in workers]
        router = running_router(urls, enabled=enabled, plugins={"prefix_affinity": settings})
        yield Pool(await stack.enter_async_context(router), workers)


def turns(name: str, count: int) -> list[list[dict[str, str]]]:
    """The growing messages of a conversation."""
    messages = [{"role": "system", "content": LONG + name}]
    grown = []
    for number in range(count):
        messages = [*messages, {"role": "user", "content": f"question {number} of {name} " * 40}]
        grown.append(messages)
        messages = [*messages, {"role": "assistant", "content": f"answer {number} " * 40}]
    return grown


async def test_a_growing_conversation_stays_where_its_prefix_is() -> None:
    async with running_pool(3) as pool:
        for name in ("ann", "bob"):
            chat = "/v1/chat/completions"
            assert len({await pool.served_by(target=chat, model="m", messages=turn) for turn in turns(name, 4)}) == 1


@pytest.mark.parametrize("key", ["text", "input_ids"])
async def test_prompts_of_every_kind_are_recognised(key: str) -> None:
    async with running_pool(3) as pool:
        first = await pool.served_by("anything")
        prompt: Any = LONG if key != "input_ids" else list(range(2000))
        home = await pool.served_by(**{key: prompt})
        assert home != first, "a miss goes to the least loaded"
        for number in range(4):
            more = f"and {number}" if key != "input_ids" else [number] * 50
            assert await pool.served_by(**{key: prompt + more}) == home


async def test_misses_are_balanced() -> None:
    async with running_pool(4) as pool:
        for number in range(40):
            await pool.served_by(f"{number} " * 600)
        assert [len(worker.requests) for worker in pool.workers] == [10] * 4
        assert pool.metric('router_prefix_affinity_choices_total{result="miss"}') == 40


async def test_a_small_match_is_a_miss() -> None:
    async with running_pool(2, min_share=0.5) as pool:
        home = await pool.served_by(LONG)
        assert await pool.served_by(LONG + "x" * 3 * len(LONG)) == 1 - home


async def test_it_works_alone() -> None:
    async with running_pool(3, enabled=["prefix_affinity"]) as pool:
        homes = {name: await pool.served_by(f"{name} " + LONG) for name in "abc"}
        assert sorted(homes.values()) == [0, 1, 2]
        for name, home in homes.items():
            assert await pool.served_by(f"{name} " + LONG + "more") == home


async def test_a_hit_does_not_count_at_an_overloaded_worker() -> None:
    async with running_pool(2, overload_absolute=2, overload_relative=1.5) as pool:
        home = await pool.served_by(LONG)
        pool.workers[home].hold()
        held = [asyncio.create_task(pool.ask(LONG + str(number))) for number in range(3)]
        await pool.workers[home].wait_for_requests(4)
        assert await pool.served_by(LONG + "one more") == 1 - home
        pool.workers[home].release()
        await asyncio.gather(*held)


@pytest.mark.parametrize("event", ["quarantined", "registered again", "new weights", "flushed"])
async def test_what_empties_a_workers_cache_empties_its_index(event: str) -> None:
    async with running_pool(2) as pool:
        home = await pool.served_by(LONG)
        worker, table = pool.worker(home), pool.router.application.workers
        if event == "quarantined":
            table.quarantine(worker, worker.generation, "a test says so")
            table.restore(worker, worker.generation)
        elif event == "registered again":
            table.add(worker.url)
        elif event == "new weights":
            table.update(worker, weight_version="2")
        else:
            table.forget_cache(worker)
        assert pool.metric("router_prefix_affinity_blocks") == 0
        assert await pool.served_by(LONG) == 1 - home, "a miss: the other one was picked longer ago"


async def test_a_removed_worker_is_forgotten() -> None:
    async with running_pool(2) as pool:
        home = await pool.served_by(LONG)
        await exchange_once(pool.router.port, target=f"/remove_worker?url={pool.workers[home].url}")
        assert pool.metric("router_prefix_affinity_blocks") == 0
        assert await pool.served_by(LONG) == 1 - home


async def test_the_index_is_bounded() -> None:
    async with running_pool(2, block_bytes=64, max_blocks=100) as pool:
        for number in range(20):
            await pool.served_by(f"{number} " * 1000)
        assert 0 < pool.metric("router_prefix_affinity_blocks") <= 100


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"content-type": "text/plain"}, orjson.dumps({"text": LONG})),
        ({"content-encoding": "gzip"}, orjson.dumps({"text": LONG})),
        ({}, orjson.dumps({"text": LONG * 10})),
        ({}, b"not json " * 100),
        ({}, b"[1, 2, 3]"),
        ({}, b'{"text": NaN}'),
    ],
)
async def test_what_is_no_json_post_within_the_bound_is_left_alone(headers: Mapping[str, str], body: bytes) -> None:
    async with running_pool(1, max_body_bytes=10_000) as pool:
        await exchange_once(pool.router.port, target="/x", headers=headers, body=body)
        assert pool.workers[0].requests[-1].body == body
        assert pool.metric("router_prefix_affinity_blocks") == 0
        assert pool.metric('router_prefix_affinity_choices_total{result="miss"}') == 0


async def test_the_body_passes_byte_for_byte() -> None:
    body = b'{"text" :  "' + LONG.encode() + b'", "sampling_params": {"temperature": 1e-05}, "text2": "\\u00e9"}'
    async with running_pool(1) as pool:
        await exchange_once(pool.router.port, body=body)
        assert pool.workers[0].requests[-1].body == body


# ---------------------------------------------------------------------------------------------------- off-GPU provider
def given_provider(function: Any) -> str:
    module = sys.modules.setdefault("given_provider", types.ModuleType("given_provider"))
    name = f"provider_{id(function):x}"
    setattr(module, name, function)
    return f"given_provider:{name}"


async def test_a_provider_may_know_of_caches_outside_the_gpus() -> None:
    asked: list[tuple[Any, Sequence[str]]] = []
    where: dict[str, float] = {}

    async def provider(body: Mapping[str, Any], worker_urls: Sequence[str]) -> Mapping[str, float]:
        asked.append((body, worker_urls))
        return where

    async with running_pool(3, off_gpu_provider=given_provider(provider)) as pool:
        where[pool.workers[2].url] = 0.9
        where["http://of-another-router"] = 1.0
        assert {await pool.served_by(f"{number} {LONG}") for number in range(4)} == {2}
        assert asked[0][0]["text"] == f"0 {LONG}"
        assert list(asked[0][1]) == [worker.url for worker in pool.workers]


@pytest.mark.parametrize("fault", ["raises", "hangs", "nonsense"])
async def test_a_provider_that_fails_costs_its_hint_and_nothing_else(fault: str) -> None:
    async def provider(body: Mapping[str, Any], worker_urls: Sequence[str]) -> Any:
        if fault == "raises":
            raise OSError("no such cache")
        if fault == "hangs":
            await asyncio.Event().wait()
        return 7

    async with running_pool(2, off_gpu_provider=given_provider(provider), off_gpu_timeout_s=0.01) as pool:
        home = await pool.served_by(LONG)
        assert await pool.served_by(LONG) == home
        assert pool.metric("router_prefix_affinity_provider_failures_total") == 2


@pytest.mark.parametrize("path", ["no.such.module:x", "asyncio:no_such_name", "asyncio", "sys:path"])
async def test_a_provider_that_cannot_be_imported_stops_the_start(path: str) -> None:
    with pytest.raises(ConfigError, match="off_gpu_provider"):
        async with running_pool(1, off_gpu_provider=path):
            pass
