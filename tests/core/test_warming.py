from router_core import Router, hookimpl
from router_core.testing import ScriptedWorker, exchange_once


class Warming:
    router: Router

    @hookimpl
    async def startup(self, router: Router) -> None:
        Warming.router = router
        router.warming["warming"] = "a model is being read"


async def test_the_router_is_not_ready_while_a_plugin_warms_and_serves_all_the_same(serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Warming,))
        cold = await exchange_once(router.port, "GET", "/readiness")
        assert (cold.status, cold.json()["error"]["code"]) == (503, "warming")
        assert cold.json()["error"]["message"] == "warming: a model is being read"
        assert (await exchange_once(router.port, "GET", "/health")).status == 200
        assert (await exchange_once(router.port, json={"text": "hi"})).status == 200
        del Warming.router.warming["warming"]
        assert (await exchange_once(router.port, "GET", "/readiness")).status == 200
