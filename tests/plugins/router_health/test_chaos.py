"""Workers die, hang, leave and come back under load; afterwards everything is as if nothing had happened."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router_core import WorkerState
from router_core.testing import Faults, NoAnswerError, RawClient, ScriptedWorker, build_request, exchange_once
from router_core.testing.router import running_router

ENABLED = ("health", "least_inflight", "engine_control", "metrics")
QUICK = {"interval_s": 0.02, "timeout_s": 0.2, "first_timeout_s": 0.2, "max_interval_s": 0.1}
CLIENTS, REQUESTS = 8, 200


class Chaos:
    """One run: clients that send and sometimes leave, and a hand that does things to workers."""

    def __init__(self, seed, router, workers):
        self.random = random.Random(seed)
        self.router = router
        self.workers = workers
        self.statuses = Counter()
        self.left = 0

    async def client(self, name):
        for number in range(REQUESTS):
            body = {"text": "hi", "rid": f"{name}-{number}", "stream": self.random.random() < 0.5}
            if self.random.random() < 0.15:
                await self.leave(body)
                continue
            try:
                answer = await exchange_once(self.router.port, json=body)
            except NoAnswerError:
                self.statuses["none"] += 1
                continue
            cut = "" if answer.clean else " cut"
            self.statuses[f"{answer.status}{cut}"] += 1
            if answer.status == 503:
                await asyncio.sleep(0.01)  # as Retry-After asks, in small

    async def leave(self, body):
        async with RawClient(self.router.port) as client:
            await client.send(build_request("POST", "/generate", json=body))
            if self.random.random() < 0.5:
                await asyncio.sleep(0)
        self.left += 1

    async def hand(self, clients):
        while not clients.done():
            worker = self.random.choice(self.workers)
            await self.random.choice([self.kill, self.hang, self.fail, self.remove, self.drain, self.scrape])(worker)
            await asyncio.wait([clients], timeout=self.random.uniform(0.0, 0.1))
            await self.mend(worker)

    async def kill(self, worker):
        await worker.stop(reset=self.random.random() < 0.5)

    async def hang(self, worker):
        worker.health.hangs = True
        worker.fault(Faults.stall(), times=2)

    async def fail(self, worker):
        worker.health.status = self.random.choice([200, 500, 503])
        fault = self.random.choice([Faults.status(500), Faults.close_amid(), Faults.garbage(), Faults.status(503)])
        worker.fault(fault, times=None)

    async def remove(self, worker):
        await exchange_once(self.router.port, "POST", f"/remove_worker?url={worker.url}")

    async def drain(self, worker):
        name = worker.url.replace("/", "%2F")
        await exchange_once(self.router.port, "DELETE", f"/workers/{name}")

    async def scrape(self, worker):
        page = await exchange_once(self.router.port, "GET", "/metrics")
        assert list(text_string_to_metric_families(page.body.decode()))
        verb = await exchange_once(self.router.port, "POST", "/flush_cache", json={})
        assert verb.status in (200, 207)

    async def mend(self, worker):
        """The worker is well and registered again; what it hangs on is cut."""
        worker.clear_faults()
        worker.health.hangs, worker.health.status = False, 200
        if worker.live and self.random.random() < 0.5:
            await worker.stop()
        await worker.start()
        if self.random.random() < 0.7:
            await exchange_once(self.router.port, "POST", f"/add_worker?url={worker.url}")


# A server of asyncio that is closed while it accepts forgets the connection: that is the scripted workers' doing.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", range(3))
async def test_after_a_storm_every_worker_that_answers_is_in_and_every_count_is_zero(seed, changes):
    async with ScriptedWorker() as a, ScriptedWorker() as b, ScriptedWorker() as c, ScriptedWorker() as d:
        workers = [a, b, c, d]
        urls = [worker.url for worker in workers]
        async with running_router(urls, enabled=ENABLED, plugins={"health": QUICK}, classes=[changes.plugin]) as router:
            chaos = Chaos(seed, router, workers)
            clients = asyncio.gather(*(chaos.client(f"c{number}") for number in range(CLIENTS)))
            hand = asyncio.create_task(chaos.hand(clients))
            await clients
            await hand
            assert sum(chaos.statuses.values()) + chaos.left == CLIENTS * REQUESTS
            assert set(chaos.statuses) <= {"200", "200 cut", "500", "502", "503", "none"}
            assert chaos.statuses["200"] > CLIENTS * REQUESTS / 4

            for worker in workers:
                await worker.stop()  # what still hangs at it ends
                await worker.start()
                if router.application.workers.get(worker.url) is None:
                    await exchange_once(router.port, "POST", "/workers", json={"url": worker.url})
            table = router.application.workers
            for worker in table:
                await changes.wait_for(worker.url, WorkerState.READY)
            async with asyncio.timeout(10):
                while router.application.proxy.running:  # noqa: ASYNC110  # those that left end without an event
                    await asyncio.sleep(0.01)
            assert sorted(worker.url for worker in table) == sorted(urls)
            assert [worker.inflight for worker in table] == [0, 0, 0, 0]
            for worker in workers:
                worker.requests.clear()
            answers = [await exchange_once(router.port, json={"text": "hi"}) for _ in range(20)]
            assert {answer.status for answer in answers} == {200}
            assert all(worker.requests for worker in workers)
            page = await exchange_once(router.port, "GET", "/metrics")
            samples = [s for f in text_string_to_metric_families(page.body.decode()) for s in f.samples]
            assert {s.labels["worker"] for s in samples if s.name == "router_attempts_total"} == set(urls)
            assert [s.value for s in samples if s.name == "router_worker_inflight"] == [0, 0, 0, 0]
            probes = [task for task in asyncio.all_tasks() if task.get_name().startswith("health probes")]
            assert len(probes) == 4
        for worker in workers:
            await worker.wait_until_idle()
