"""Scripted workers, a real router, the plugin as it was installed."""

from router_core.testing import ScriptedWorker, exchange_once
from router_core.testing.router import running_router


async def test_the_cheapest_worker_serves():
    async with ScriptedWorker() as dear, ScriptedWorker() as cheap, running_router(enabled=["cost_aware"]) as router:
        for worker, price in ((dear, "4.0"), (cheap, "1.5")):
            labels = {"usd_per_hour": price}
            await exchange_once(router.port, "POST", "/workers", json={"url": worker.url, "labels": labels})
        for _ in range(4):
            assert (await exchange_once(router.port, json={"text": "hi"})).status == 200
        assert (len(dear.requests), len(cheap.requests)) == (0, 4)


async def test_workers_without_a_price_take_turns():
    async with ScriptedWorker() as one, ScriptedWorker() as other:
        async with running_router([one.url, other.url], enabled=["cost_aware"]) as router:
            for _ in range(4):
                await exchange_once(router.port, json={"text": "hi"})
        assert (len(one.requests), len(other.requests)) == (2, 2)
