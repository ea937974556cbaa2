"""Retries, admission, versions and pauses together, while workers die, come back, pause and change their weights."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from router_core import Attempt, Exchange, Outcome, hookimpl
from router_core.testing import NoAnswerError, RawClient, ScriptedWorker, build_request, exchange_once
from router_core.testing.router import RunningRouter, running_router

REQUESTS = 1500
CLIENTS = 48


class Ledger:
    """What really went out, and how every exchange ended."""

    ends: Counter[str]
    sent: Counter[str]
    wrong: list[str]

    def __init__(self, settings: Any) -> None:
        cls = type(self)
        cls.ends, cls.sent, cls.wrong = Counter(), Counter(), []

    @hookimpl
    async def attempt_start(self, exchange: Exchange, attempt: Attempt) -> None:
        attempt.before_send(lambda: self._sent(exchange, attempt))

    def _sent(self, exchange: Exchange, attempt: Attempt) -> None:
        self.sent[exchange.id] += 1
        tag, version = attempt.request.headers.get("x-version-tag"), attempt.worker.weight_version
        if tag is not None and int(tag) > int(version or -1):
            self.wrong.append(f"{exchange!r} of tag {tag} went to {version}")
        if attempt.worker.inflight > 8:
            self.wrong.append(f"{attempt.worker!r} has more than it may")

    @hookimpl
    def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
        self.ends[exchange.id] += 1


class Chaos:
    """Does something to the pool, again and again."""

    def __init__(self, router: RunningRouter, workers: list[ScriptedWorker], seed: int) -> None:
        self.router, self.workers = router, workers
        self.random = random.Random(seed)
        self.version = 1
        self.done: Counter[str] = Counter()

    async def call(self, method: str, target: str, json: object = None) -> None:
        answer = await exchange_once(self.router.port, method, target, json=json)
        assert answer.status in (200, 202, 207), (target, answer.body)

    async def do_something(self, worker: ScriptedWorker) -> None:
        deeds: list[Callable[[ScriptedWorker], Awaitable[None]]] = [
            self.kill,
            self.remove,
            self.publish,
            self.publish_to_all,
            self.announce,
            self.pause,
            self.pause_worker,
            self.quarantine,
            self.fill,
        ]
        deed = self.random.choice(deeds)
        self.done[deed.__name__] += 1
        await deed(worker)

    async def nap(self) -> None:
        await asyncio.sleep(self.random.uniform(0.001, 0.03))

    async def register(self, worker: ScriptedWorker) -> None:
        worker.engine.weight_version = str(self.version)
        await self.call("POST", "/workers", {"url": worker.url, "weight_version": str(self.version)})

    async def kill(self, worker: ScriptedWorker) -> None:
        await worker.stop(reset=True)
        await self.nap()
        await worker.start()
        await self.register(worker)

    async def remove(self, worker: ScriptedWorker) -> None:
        await self.call("DELETE", f"/workers/{self.known(worker).id}")
        await self.nap()
        await self.register(worker)

    async def publish(self, worker: ScriptedWorker) -> None:
        worker.engine.weight_version = str(self.version)
        body = [{"worker_id": worker.url, "weight_version": str(self.version)}]
        await self.call("POST", "/workers/update_weight_version", body)

    async def publish_to_all(self, worker: ScriptedWorker) -> None:
        self.version += 1
        for each in self.workers:
            await self.publish(each)

    async def announce(self, worker: ScriptedWorker) -> None:
        self.version += 1
        body = [{"worker_id": worker.url, "pending_weight_version": str(self.version)}]
        await self.call("POST", "/workers/update_weight_version", body)
        await self.nap()
        await self.publish(worker)

    async def pause(self, worker: ScriptedWorker) -> None:
        await self.call("POST", "/routing/pause?wait=true&timeout=5")
        await self.publish_to_all(worker)
        await self.call("POST", "/routing/resume")

    async def pause_worker(self, worker: ScriptedWorker) -> None:
        await self.call("POST", f"/workers/pause?worker_id={worker.url}")
        await self.nap()
        await self.call("POST", f"/workers/resume?worker_id={worker.url}")

    async def quarantine(self, worker: ScriptedWorker) -> None:
        known = self.known(worker)
        self.router.application.workers.quarantine(known, known.generation, "chaos")
        await self.nap()
        self.router.application.workers.restore(known, known.generation)
        await self.nap()
        await self.publish(worker)

    async def fill(self, worker: ScriptedWorker) -> None:
        await self.call("POST", "/workers/update_stats", [{"worker_id": worker.url, "kv_usage": 0.99}])
        await self.nap()
        await self.call("POST", "/workers/update_stats", [{"worker_id": worker.url, "kv_usage": 0.1}])

    def known(self, worker: ScriptedWorker) -> Any:
        return self.router.application.workers.get(worker.url)


@pytest.mark.parametrize("seed", [1, 2])
async def test_counts_are_zero_and_nothing_went_wrong_after_chaos(seed: int) -> None:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker()) for _ in range(3)]
        router = await stack.enter_async_context(
            running_router(
                [worker.url for worker in workers],
                enabled=["retry", "weight_version", "admission", "least_inflight"],
                plugins={
                    "weight_version": {"version_path": ""},
                    "admission": {"max_inflight_per_worker": 8, "max_kv_usage": 0.9, "reserve_retry_s": 0.05},
                },
                classes=[Ledger],
            )
        )
        chaos = Chaos(router, workers, seed)
        await chaos.publish_to_all(workers[0])
        statuses = await roll_out(router, chaos, seed)

        for worker in workers:
            await worker.wait_until_idle()
        assert Ledger.wrong == []
        assert set(Ledger.ends.values()) == {1}
        assert set(Ledger.sent.values()) == {1}, "a request was sent twice"
        assert len(router.application.holds) == 0
        assert [worker.inflight for worker in router.application.workers] == [0, 0, 0]
        assert router.application.proxy.running == set()
        assert not set(statuses) - {"200", "broken", "left", "worker_lost", "worker_unreachable", "no_worker"}, statuses
        assert statuses["200"] > REQUESTS / 2, (statuses, chaos.done)


async def roll_out(router: RunningRouter, chaos: Chaos, seed: int) -> Counter[str]:
    """Clients ask while the chaos goes on; some leave before they are answered. How the requests ended."""
    statuses: Counter[str] = Counter()
    left = REQUESTS

    async def client(number: int) -> None:
        nonlocal left
        choose = random.Random(seed * 1000 + number)
        while left > 0:
            left -= 1
            headers = {"x-session-id": f"s{number}-{left % 3}"} if choose.random() < 0.5 else {}
            if choose.random() < 0.3:
                headers["x-version-tag"] = str(chaos.version)
            body = {"text": "x" * choose.choice((3, 3, 100_000)), "stream": choose.random() < 0.5}
            statuses[await ask(router, headers, body, choose)] += 1

    asking = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
    everyone = asyncio.gather(*asking)

    async def disturb(worker: ScriptedWorker) -> None:
        while not everyone.done():
            await chaos.do_something(worker)

    await asyncio.gather(everyone, *(disturb(worker) for worker in chaos.workers))
    return statuses


async def ask(router: RunningRouter, headers: dict[str, str], body: object, choose: random.Random) -> str:
    leaves_after_s = choose.uniform(0.0, 0.02) if choose.random() < 0.1 else None
    async with RawClient(router.port) as client:
        await client.send(build_request("POST", "/generate", headers, json=body, host="h"))
        if leaves_after_s is not None:
            await asyncio.sleep(leaves_after_s)
            return "left"
        try:
            answer = await client.read_answer(timeout_s=30)
        except NoAnswerError:
            return "broken"
    if answer.status == 200:
        return "200" if answer.clean else "broken"
    return str(answer.get("x-router-error"))
