"""Scripted workers, a real router, the plugin as it was installed."""

from router_cost_aware.plugin import CostAware

from router_core.testing import ScriptedWorker, assert_plugin_conforms, build_worker, exchange_once
from router_core.testing.router import running_router


async def test_it_keeps_to_the_contract_of_plugins():
    await assert_plugin_conforms(CostAware)


def test_a_worker_gets_the_lowest_price_over_its_own():
    dear, cheap, free = (build_worker(labels={"usd_per_hour": price}) for price in ("4.0", "1.0", "free"))
    assert CostAware(CostAware.Settings()).score_workers([dear, cheap, free]) == {dear: 0.25, cheap: 1.0}


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
