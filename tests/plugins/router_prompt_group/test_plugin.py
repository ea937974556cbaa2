"""Groups of requests over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from router_core.testing import RawAnswer, ScriptedWorker, TurnedClock, exchange_once
from router_core.testing.router import RunningRouter, running_router


@asynccontextmanager
async def running_pool(
    count: int = 3, *, clock: TurnedClock | None = None, router: Mapping[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[RunningRouter, list[ScriptedWorker]]]:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker()) for _ in range(count)]
        yield (
            await stack.enter_async_context(
                running_router(
                    [worker.url for worker in workers],
                    enabled=["prompt_group", "least_inflight"],
                    plugins={"prompt_group": settings},
                    profiles={"free": {"plugins": {"prompt_group": {"is_on": False}}}},
                    clock=clock,
                    router=router,
                )
            ),
            workers,
        )


async def ask(router: RunningRouter, group: str | None, **headers: str) -> RawAnswer:
    fields = {**headers, **({} if group is None else {"x-prompt-id": group})}
    return await exchange_once(router.port, headers=fields, json={"text": "hi"})


async def served_by(router: RunningRouter, group: str | None, **headers: str) -> str | None:
    answer = await ask(router, group, **headers)
    assert answer.status == 200, answer.body
    return answer.get("x-router-worker")


async def test_a_burst_of_one_group_goes_to_one_worker_and_other_groups_elsewhere() -> None:
    async with running_pool(3) as (router, workers):
        for worker in workers:
            worker.hold()
        asking = [asyncio.create_task(ask(router, f"p{number % 3}")) for number in range(24)]
        for worker in workers:
            await worker.wait_for_requests(8)
            assert len({request.get("x-prompt-id") for request in worker.requests}) == 1
            worker.release()
        await asyncio.gather(*asking)


async def test_requests_without_prompt_id_are_balanced() -> None:
    async with running_pool(2) as (router, _):
        assert len({await served_by(router, None) for _ in range(4)}) == 2
        assert len({await served_by(router, "") for _ in range(4)}) == 2


async def test_a_group_falls_through_when_its_worker_is_out_and_then_stays_there() -> None:
    async with running_pool(3) as (router, _):
        home = await served_by(router, "p")
        worker = router.application.workers.get(home or "")
        assert worker is not None
        router.application.workers.quarantine(worker, worker.generation, "a test says so")
        away = {await served_by(router, "p") for _ in range(4)}
        assert len(away) == 1
        assert home not in away
        router.application.workers.restore(worker, worker.generation)
        assert {await served_by(router, "p") for _ in range(4)} == away


async def test_a_group_keeps_its_worker_for_its_linger() -> None:
    clock = TurnedClock()
    async with running_pool(2, clock=clock, linger_s=10.0) as (router, _):
        home = await served_by(router, "p")
        await served_by(router, None)
        await served_by(router, None)
        await served_by(router, None)
        assert await served_by(router, "p") == home
        assert "router_prompt_groups 1" in router.application.outside.metrics()
        await clock.turn(20.0)
        assert "router_prompt_groups 0" in router.application.outside.metrics()


async def test_without_linger_nothing_is_kept_between_requests() -> None:
    async with running_pool(2, linger_s=0.0) as (router, _):
        assert len({await served_by(router, "p") for _ in range(4)}) == 2


async def test_a_refused_first_request_does_not_pin_its_group() -> None:
    async with running_pool(2) as (router, workers):
        await workers[0].stop()
        answers = [await ask(router, "p") for _ in range(4)]
        assert [answer.status for answer in answers if answer.status != 200] in ([], [502])
        assert answers[-1].get("x-router-worker") == workers[1].url


async def test_the_prompt_id_of_a_session_holds_for_all_its_turns() -> None:
    async with running_pool(3) as (router, workers):
        for session in ("a", "b"):
            body = {"session_id": session, "prompt_id": "p"}
            assert (await exchange_once(router.port, target="/sessions", json=body)).status == 200
        for session in ("a", "b", "a", "b"):
            target = f"/sessions/{session}/generate"
            headers = {"x-prompt-id": "another"}
            await exchange_once(router.port, target=target, headers=headers, json={"text": "hi"})
        assert sorted(len(worker.requests) for worker in workers) == [0, 0, 4]


async def test_a_profile_may_leave_groups_alone() -> None:
    async with running_pool(2) as (router, _):
        served = {await served_by(router, "p", **{"x-router-profile": "free"}) for _ in range(4)}
        assert len(served) == 2


async def test_a_prompt_id_that_is_too_long_is_a_400_that_names_its_header() -> None:
    async with running_pool(1, max_id_characters=8) as (router, workers):
        assert (await ask(router, "p" * 8)).status == 200
        answer = await ask(router, "p" * 9)
        assert (answer.status, answer.json()["error"]["param"]) == (400, "x-prompt-id")
        assert len(workers[0].requests) == 1


async def test_a_group_of_a_client_that_left_is_let_go() -> None:
    async with running_pool(1) as (router, (worker,)):
        worker.hold()
        asking = asyncio.create_task(ask(router, "p"))
        await worker.wait_for_requests(1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await worker.wait_until_idle()
        assert "router_prompt_groups 0" in router.application.outside.metrics()
