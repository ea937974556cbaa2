"""Hanging and continuing sessions over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from router_core.testing import RawAnswer, RawClient, ScriptedWorker, TurnedClock, build_request, exchange_once
from router_core.testing.router import RunningRouter, running_router

ASK = {"text": "hi"}


@asynccontextmanager
async def pool(
    count: int = 1, *, clock: TurnedClock | None = None, **settings: Any
) -> AsyncIterator[tuple[RunningRouter, list[ScriptedWorker]]]:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker()) for _ in range(count)]
        router = await stack.enter_async_context(
            running_router(
                [worker.url for worker in workers],
                enabled=["session_control", "session_affinity", "least_inflight"],
                plugins={"session_control": settings},
                clock=clock,
            )
        )
        yield router, workers


async def turn(router: RunningRouter, session: str) -> RawAnswer:
    return await exchange_once(router.port, target=f"/sessions/{session}/generate", json=ASK)


async def opened(router: RunningRouter, session: str) -> None:
    answer = await exchange_once(router.port, target="/sessions", json={"session_id": session})
    assert answer.status == 200, answer.body


async def control(router: RunningRouter, verb: str, *sessions: str, **more: Any) -> Any:
    answer = await exchange_once(router.port, target=f"/control/{verb}", json={"session_ids": list(sessions), **more})
    assert answer.status == 200, answer.body
    return answer.json()


async def listed(router: RunningRouter, query: str = "") -> dict[str, dict[str, Any]]:
    answer = await exchange_once(router.port, "GET", f"/control/sessions{query}")
    assert answer.status == 200, answer.body
    return {session["session_id"]: session for session in answer.json()["sessions"]}


async def until(is_true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110 - the router sets no event for tests
            await asyncio.sleep(0.001)


async def held(router: RunningRouter, count: int) -> None:
    await until(lambda: len(router.application.holds) == count)


async def test_a_hung_session_waits_at_its_next_turn_and_resumes() -> None:
    async with pool() as (router, [worker]):
        await opened(router, "s")
        assert (await turn(router, "s")).status == 200
        await control(router, "hang", "s")
        waiting = asyncio.create_task(turn(router, "s"))
        await held(router, 1)
        assert len(worker.requests) == 1
        assert (await listed(router))["s"]["waiting"] == 1
        assert (await exchange_once(router.port, "GET", "/sessions/s")).json()["control_status"] == "hung"
        assert (await control(router, "continue", "s"))["had_hung"] == 1
        assert (await waiting).status == 200
        assert len(worker.requests) == 2


async def test_a_running_turn_finishes_first() -> None:
    async with pool() as (router, [worker]):
        await opened(router, "s")
        worker.say("words", hold_after=0)
        running = asyncio.create_task(turn(router, "s"))
        await worker.wait_for_requests(1)
        told = await control(router, "hang", "s")
        assert (told["hung"][0]["status"], told["hung"][0]["is_hung"]) == ("generate", True)
        next_turn = asyncio.create_task(turn(router, "s"))
        await held(router, 1)
        worker.release()
        assert (await running).status == 200
        assert (await listed(router, "?status=hung")).keys() == {"s"}
        await control(router, "continue", "s")
        assert (await next_turn).status == 200


async def test_other_sessions_and_plain_requests_go_on() -> None:
    async with pool() as (router, _):
        for session in "ab":
            await opened(router, session)
        await control(router, "hang", "a")
        assert (await turn(router, "b")).status == 200
        assert (await exchange_once(router.port, json=ASK)).status == 200


async def test_a_session_by_header_is_hung_too() -> None:
    async with pool() as (router, _):
        headers = [("x-session-id", "h")]
        assert (await exchange_once(router.port, headers=headers, json=ASK)).status == 200
        await control(router, "hang", "h")
        waiting = asyncio.create_task(exchange_once(router.port, headers=headers, json=ASK))
        await held(router, 1)
        await control(router, "continue", "h")
        assert (await waiting).status == 200


async def test_it_continues_at_the_worker_that_is_named_and_stays_there() -> None:
    async with pool(2) as (router, workers):
        await opened(router, "s")
        first = (await turn(router, "s")).get("x-router-worker")
        other = next(worker.url for worker in workers if worker.url != first)
        await control(router, "hang", "s")
        waiting = asyncio.create_task(turn(router, "s"))
        await held(router, 1)
        await control(router, "continue", "s", worker_id=other)
        assert (await waiting).get("x-router-worker") == other
        assert (await turn(router, "s")).get("x-router-worker") == other


async def test_hanging_ends_by_itself() -> None:
    clock = TurnedClock()
    async with pool(clock=clock) as (router, _):
        await opened(router, "s")
        await control(router, "hang", "s", ttl_s=0.05)
        waiting = asyncio.create_task(turn(router, "s"))
        await held(router, 1)
        await clock.turn(0.06)
        assert (await waiting).status == 200
        assert (await listed(router))["s"]["status"] == "env"


async def test_a_client_that_leaves_while_its_session_hangs_is_noticed() -> None:
    async with pool() as (router, [worker]):
        await opened(router, "s")
        await control(router, "hang", "s")
        async with RawClient(router.port) as client:
            await client.send(build_request("POST", "/sessions/s/generate", json=ASK))
            await held(router, 1)
            client.leave()
            await held(router, 0)
        assert (await listed(router))["s"]["waiting"] == 0
        assert worker.requests == []


async def test_a_hung_session_can_be_deleted() -> None:
    async with pool() as (router, [worker]):
        await opened(router, "s")
        await control(router, "hang", "s")
        waiting = [asyncio.create_task(turn(router, "s")) for _ in range(3)]
        await held(router, 3)
        gone = await exchange_once(router.port, "DELETE", "/sessions/s", timeout_s=5)
        assert gone.status == 204
        assert gone.get("x-router-cancelled-turns") is None
        for answer in await asyncio.gather(*waiting):
            assert (answer.status, answer.json()["error"]["code"]) == (409, "session_closing")
        assert worker.requests == []
        assert await listed(router) == {}


async def test_the_list_tells_status_tokens_and_turns() -> None:
    async with pool() as (router, [worker]):
        for session in ("env", "run", "hang"):
            await opened(router, session)
        answer = (await turn(router, "env")).json()["meta_info"]
        await control(router, "hang", "hang")
        worker.say("words", hold_after=0)
        running = asyncio.create_task(turn(router, "run"))
        await worker.wait_for_requests(2)
        told = await listed(router)
        assert {name: session["status"] for name, session in told.items()} == {
            "env": "env",
            "run": "generate",
            "hang": "hung",
        }
        assert told["env"]["total_tokens"] == answer["prompt_tokens"] + answer["completion_tokens"]
        assert (told["env"]["turns"], told["run"]["inflight"]) == (1, 1)
        assert next(iter(told)) == "env"
        worker.release()
        await running


@pytest.mark.parametrize(
    ("verb", "body", "status", "param"),
    [
        ("hang", {"session_ids": ["nobody"]}, 404, "session_id"),
        ("hang", {"session_ids": []}, 400, "session_ids"),
        ("hang", {"session_ids": ["s"], "ttl_s": 0}, 400, "ttl_s"),
        ("hang", {"session_ids": ["s"], "ttl_s": 1e9}, 400, "ttl_s"),
        ("hang", {"session_ids": ["s"], "more": 1}, 400, "more"),
        ("continue", {"session_ids": ["s"], "worker_id": "nobody"}, 404, "worker_id"),
        ("continue", {}, 400, "session_ids"),
    ],
)
async def test_a_wrong_call_names_what_is_wrong(verb: str, body: Any, status: int, param: str) -> None:
    async with pool() as (router, _):
        await opened(router, "s")
        answer = await exchange_once(router.port, target=f"/control/{verb}", json=body)
        assert (answer.status, answer.json()["error"]["param"]) == (status, param)
