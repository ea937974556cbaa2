"""A plugin that may be skipped and fails too often is switched off, and its state is shown."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_core import hookimpl
from router_core.breaker import Breaker
from router_core.testing import ScriptedWorker, exchange_once, reply

Serve = Callable[..., Awaitable[Any]]
ASK = {"text": "hi"}


@given(st.lists(st.floats(0, 20), max_size=40), st.integers(1, 5))
def test_it_trips_once_at_so_many_failures_within_the_window(pauses: list[float], max_failures: int) -> None:
    now = 0.0
    breaker = Breaker(max_failures, 10.0, lambda: now)
    failed: list[float] = []
    tripped = False
    for pause in pauses:
        now += pause
        failed.append(now)
        within = [at for at in failed if now - at <= 10.0]
        is_first = not tripped and len(within) >= max_failures
        tripped = tripped or is_first
        assert breaker.fail() is is_first
        assert breaker.is_tripped is tripped


def failing(on_error: str, calls: list[int]) -> type[Any]:
    class Failing:
        @hookimpl
        async def request_start(self) -> None:
            calls.append(1)
            raise ValueError("every time")

    return type("Failing", (Failing,), {"on_error": on_error})


async def states(router: Any) -> dict[str, str]:
    listed = (await exchange_once(router.port, "GET", "/plugins")).json()
    return {plugin["name"]: plugin["state"] for plugin in listed["plugins"]}


async def test_a_plugin_that_fails_too_often_is_switched_off_for_all(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []
    async with ScriptedWorker() as worker:
        router = await serve(
            worker, classes=(failing("skip", calls),), router={"skip_max_failures": 3}, profiles={"p": {}}
        )
        worker.handler = reply(b"{}")
        for _ in range(5):
            assert (await exchange_once(router.port, json=ASK)).status == 200
        assert len(calls) == 3
        assert "plugin 'failing' is switched off" in caplog.text
        assert await states(router) == {"failing": "switched_off", "ends": "on"}
        for fields in ([("X-Router-Plugins", "+failing")], [("X-Router-Profile", "p")]):
            assert (await exchange_once(router.port, headers=fields, json=ASK)).status == 200
        assert len(calls) == 3


async def test_a_plugin_that_must_not_be_skipped_is_never_switched_off(serve: Serve) -> None:
    calls: list[int] = []
    router = await serve(classes=(failing("fail", calls),), router={"skip_max_failures": 2})
    for _ in range(5):
        assert (await exchange_once(router.port, json=ASK)).get("x-router-error") == "plugin_error"
    assert len(calls) == 5
    assert (await states(router))["failing"] == "on"


async def test_the_list_of_plugins_tells_order_origin_hooks_and_errors(serve: Serve) -> None:
    calls: list[int] = []
    router = await serve(
        enabled=("round_robin",),
        classes=(failing("skip", calls),),
        router={"available": ["health"]},
        profiles={"b": {}, "a": {}},
    )
    await exchange_once(router.port, json=ASK)
    answer = await exchange_once(router.port, "GET", "/plugins")
    told = answer.json()
    assert (answer.status, told["profiles"], told["total"]) == (200, ["a", "b"], 4)
    names = [(plugin["order"], plugin["name"], plugin["state"]) for plugin in told["plugins"]]
    assert names == [(1, "round_robin", "on"), (2, "failing", "on"), (3, "ends", "on"), (4, "health", "available")]
    first, second = told["plugins"][:2]
    assert (first["distribution"], first["hooks"], first["on_error"]) == ("router-core", ["pick_worker"], "fail")
    assert (second["errors"], second["on_error"]) == ({"request_start": 1}, "skip")
