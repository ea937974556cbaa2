"""The example that makes room in KV caches, run as its users run it."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from router_core.testing import ScriptedWorker, TurnedClock, exchange_once
from router_core.testing.router import RunningRouter, running_router

EXAMPLE = Path(__file__).parents[2] / "examples" / "capacity_control" / "capacity_control.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("capacity_control_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def call(router: RunningRouter, target: str, json: Any = None, method: str = "POST") -> Any:
    answer = await exchange_once(router.port, method, target, json=json)
    assert answer.status == 200, answer.body
    return answer.json()


async def hung(router: RunningRouter) -> list[str]:
    told = await call(router, "/control/sessions?status=hung", method="GET")
    return [session["session_id"] for session in told["sessions"]]


async def use(router: RunningRouter, worker: ScriptedWorker, kv: float) -> None:
    await call(router, "/workers/update_stats", [{"worker_id": worker.url, "stats": {"token_usage": kv}}])


async def until(is_true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110 - the router sets no event for tests
            await asyncio.sleep(0.001)


async def test_the_longest_sessions_hang_while_caches_are_full(example: ModuleType) -> None:
    clock = TurnedClock()
    async with (
        ScriptedWorker() as worker,
        running_router(
            [worker.url], enabled=["session_control"], classes=[example.CapacityControl], clock=clock
        ) as router,
    ):
        for name, words in (("short", 1), ("middle", 20), ("long", 60)):
            await call(router, "/sessions", {"session_id": name})
            await call(router, f"/sessions/{name}/generate", {"text": "word " * words})
        await use(router, worker, 0.5)
        await clock.turn(1)
        assert await hung(router) == []
        await use(router, worker, 0.95)
        await clock.turn(1)
        assert await hung(router) == ["long"]
        await clock.turn(3)
        assert await hung(router) == ["long", "middle"]  # one is always left
        waiting = asyncio.create_task(call(router, "/sessions/long/generate", {"text": "more"}))
        await until(lambda: len(router.application.holds) == 1)
        await use(router, worker, 0.8)
        await clock.turn(2)
        assert await hung(router) == ["long", "middle"]
        await use(router, worker, 0.3)
        await clock.turn(1)
        assert await hung(router) == ["long"]
        await clock.turn(1)
        await waiting
        assert await hung(router) == []
        await use(router, worker, 0.95)
        await clock.turn(60)  # what was pushed says nothing any more
        assert len(await hung(router)) <= 2
