"""Affinity beside the other balancing plugins: who wins, and that nothing breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from router_core.testing import ScriptedWorker, exchange_once
from router_core.testing.router import running_router

ORDERS: list[Sequence[str]] = [
    ("session_affinity", "least_inflight"),
    ("least_inflight", "session_affinity"),
    ("power_of_two", "session_affinity"),
    ("session_affinity", "prefix_affinity", "least_inflight"),
    ("least_inflight", "power_of_two", "prefix_affinity", "session_affinity"),
]


class Pool:
    """A router and its workers."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.workers: list[ScriptedWorker] = []
        self.port = 0

    async def start(self, enabled: Sequence[str], count: int = 3, **tables: Any) -> None:
        self.workers = [await self._stack.enter_async_context(ScriptedWorker()) for _ in range(count)]
        urls = [worker.url for worker in self.workers]
        router = running_router(urls, enabled=enabled, plugins=tables)
        self.port = (await self._stack.enter_async_context(router)).port

    async def served_by(self, session: str, prompt: str | None = None, text: str = "hi", **pin: str) -> int:
        headers = {"x-session-id": session, **{f"x-{name.replace('_', '-')}": value for name, value in pin.items()}}
        if prompt is not None:
            headers["x-prompt-id"] = prompt
        answer = await exchange_once(self.port, headers=headers, json={"text": text})
        assert answer.status == 200, answer.body
        return [worker.url for worker in self.workers].index(answer.get("x-router-worker") or "")


@pytest.mark.parametrize("enabled", ORDERS, ids="+".join)
async def test_sessions_stay_whatever_balances_beside(enabled: Sequence[str]) -> None:
    async with AsyncExitStack() as stack:
        pool = Pool(stack)
        await pool.start(enabled)
        homes = {session: await pool.served_by(session) for session in "abcdef"}
        for _ in range(3):
            assert {session: await pool.served_by(session) for session in homes} == homes


@pytest.mark.parametrize("enabled", ORDERS[:3], ids="+".join)
async def test_load_alone_does_not_move_a_session(enabled: Sequence[str]) -> None:
    async with AsyncExitStack() as stack:
        pool = Pool(stack)
        await pool.start(enabled)
        home = await pool.served_by("s")
        pool.workers[home].hold()
        held = [asyncio.create_task(pool.served_by("s")) for _ in range(6)]
        await pool.workers[home].wait_for_requests(7)
        pool.workers[home].release()
        assert set(await asyncio.gather(*held)) == {home}


async def test_a_session_follows_its_group() -> None:
    async with AsyncExitStack() as stack:
        pool = Pool(stack)
        await pool.start(("session_affinity", "prompt_group", "least_inflight"))
        assert len({await pool.served_by(f"a{number}", prompt="p") for number in range(6)}) == 1
        alone = {await pool.served_by(f"b{number}") for number in range(6)}
        assert len(alone) == 2, "where fewer sessions are"


async def test_a_pin_wins_over_group_session_and_prefix() -> None:
    text = "the same long prompt for all of them " * 100
    async with AsyncExitStack() as stack:
        pool = Pool(stack)
        await pool.start(("prefix_affinity", "prompt_group", "session_affinity", "least_inflight"))
        home = await pool.served_by("s", prompt="p", text=text)
        other = (home + 1) % 3
        assert await pool.served_by("s", prompt="p", text=text, base_worker_id=pool.workers[other].url) == other


async def test_a_new_session_may_be_placed_by_its_prefix() -> None:
    text = "the same long prompt for all of them " * 100
    async with AsyncExitStack() as stack:
        pool = Pool(stack)
        await pool.start(("prefix_affinity", "session_affinity", "least_inflight"), prefix_affinity={"weight": 4.0})
        assert len({await pool.served_by(f"s{number}", text=text) for number in range(5)}) == 1


async def test_a_plugin_that_picks_behind_affinity_leaves_pins_in_force() -> None:
    async with AsyncExitStack() as stack:
        pool = Pool(stack)
        await pool.start(("session_affinity", "round_robin"))
        assert {await pool.served_by("s", base_worker_id=pool.workers[2].url) for _ in range(4)} == {2}
        assert {await pool.served_by("s") for _ in range(3)} == {0, 1, 2}


DEFAULTS = ("health", "retry", "session_affinity", "least_inflight")


async def test_a_first_turn_that_was_retried_binds_its_session_to_the_worker_that_answered() -> None:
    async with AsyncExitStack() as stack:
        pool = Pool(stack)
        await pool.start(DEFAULTS, count=2, health={"interval_s": 1000.0})
        await pool.workers[0].stop()
        assert [await pool.served_by(session) for session in "abc"] == [1, 1, 1]
        await pool.workers[0].start()
        assert [await pool.served_by(session) for session in "abc"] == [1, 1, 1]


async def test_a_soft_pin_is_retried_elsewhere_and_a_hard_one_is_not() -> None:
    async with AsyncExitStack() as stack:
        pool = Pool(stack)
        await pool.start(("retry", "session_affinity", "least_inflight"), count=2)
        await pool.workers[0].stop()
        gone = pool.workers[0].url
        assert await pool.served_by("s", base_worker_id=gone) == 1
        headers = {"x-base-worker-id": gone, "x-hard-pin": "true"}
        hard = await exchange_once(pool.port, headers=headers, json={"text": "hi"})
        assert (hard.status, hard.get("x-router-error")) == (502, "worker_unreachable")
        once = await exchange_once(pool.port, headers={**headers, "x-force-pin-once": "true"}, json={"text": "hi"})
        assert once.get("x-router-worker") == pool.workers[1].url


async def test_a_hard_pin_waits_for_a_worker_that_is_out_for_now_and_a_soft_one_does_not() -> None:
    async with AsyncExitStack() as stack:
        pool = Pool(stack)
        await pool.start(("weight_version", "session_affinity", "least_inflight"), count=2)
        first, second = pool.workers
        paused = await exchange_once(pool.port, target="/routing/pause", json={"worker_id": first.url})
        assert paused.status == 200, paused.body
        assert await pool.served_by("s", base_worker_id=first.url) == 1
        waiting = asyncio.create_task(pool.served_by("s", base_worker_id=first.url, hard_pin="true"))
        assert await pool.served_by("t", base_worker_id=second.url) == 1
        assert not waiting.done()
        await exchange_once(pool.port, target="/routing/resume", json={"worker_id": first.url})
        assert await waiting == 0
