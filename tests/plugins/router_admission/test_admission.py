"""Admission over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from router_core import Attempt, ConfigError, Exchange, Outcome, hookimpl
from router_core.testing import (
    Connection,
    Faults,
    RawAnswer,
    RawClient,
    ScriptedRequest,
    ScriptedWorker,
    build_request,
    exchange_once,
    reply,
    reply_json,
)
from router_core.testing.router import RunningRouter, running_router

ASK = {"text": "hi"}
ENABLED = ("retry", "admission", "least_inflight")


@asynccontextmanager
async def pool(
    count: int,
    *,
    enabled: Sequence[str] = ENABLED,
    classes: Sequence[type[Any]] = (),
    router: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[RunningRouter, list[ScriptedWorker]]]:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker()) for _ in range(count)]
        running = await stack.enter_async_context(
            running_router(
                [worker.url for worker in workers],
                enabled=enabled,
                plugins={"admission": settings},
                classes=classes,
                router=router,
            )
        )
        yield running, workers


async def generate(router: RunningRouter, at: object = "hi", **more: Any) -> RawAnswer:
    return await exchange_once(router.port, json={"text": str(at)}, **more)


async def push(router: RunningRouter, worker: ScriptedWorker, **stats: float) -> None:
    body = [{"worker_id": worker.url, **stats}]
    assert (await exchange_once(router.port, "POST", "/workers/update_stats", json=body)).status == 200


async def until(is_true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110 - the router sets no event for tests
            await asyncio.sleep(0.001)


async def held(router: RunningRouter, count: int) -> None:
    await until(lambda: len(router.application.holds) == count)


def inflight(router: RunningRouter) -> list[int]:
    return [worker.inflight for worker in router.application.workers]


# ------------------------------------------------------------------------------------------------------------ in flight
async def test_no_worker_gets_more_than_its_bound_and_the_rest_waits_in_order() -> None:
    async with pool(1, max_inflight_per_worker=2) as (router, [worker]):
        worker.hold()
        asking = []
        for at in range(6):
            asking.append(asyncio.create_task(generate(router, at)))
            await until(lambda at=at: len(worker.requests) + len(router.application.holds) == at + 1)  # type: ignore[misc]
        assert (len(worker.requests), inflight(router)) == (2, [2])
        [reason] = {item.reason for item in router.application.holds}
        assert "max_inflight_per_worker" in reason
        worker.release()
        assert [answer.status for answer in await asyncio.gather(*asking)] == [200] * 6
        assert [request.json()["text"] for request in worker.requests] == [str(at) for at in range(6)]


async def test_the_bound_of_all_workers_holds_over_all() -> None:
    async with pool(2, max_inflight=3) as (router, workers):
        for worker in workers:
            worker.hold()
        asking = [asyncio.create_task(generate(router)) for _ in range(5)]
        await held(router, 2)
        assert sum(inflight(router)) == 3
        for worker in workers:
            worker.release()
        assert [answer.status for answer in await asyncio.gather(*asking)] == [200] * 5


async def test_whoever_comes_later_does_not_overtake() -> None:
    """The place that gets free goes to the one that waits, though a newcomer comes in that very moment."""

    class Newcomers:
        @hookimpl
        def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
            newcomers.append(asyncio.create_task(generate(router, "newcomer"))) if len(newcomers) < 3 else None

    newcomers: list[asyncio.Task[RawAnswer]] = []
    async with pool(1, classes=[Newcomers], max_inflight_per_worker=1) as (router, [worker]):
        worker.hold()
        asking = []
        for at in range(4):
            asking.append(asyncio.create_task(generate(router, at)))
            await until(lambda at=at: len(worker.requests) + len(router.application.holds) == at + 1)  # type: ignore[misc]
        worker.release()
        await asyncio.gather(*asking)
        await until(lambda: len(newcomers) == 3)
        await asyncio.gather(*newcomers)
        assert [request.json()["text"] for request in worker.requests] == ["0", "1", "2", "3", *["newcomer"] * 3]


async def test_a_client_that_leaves_while_it_waits_takes_no_place() -> None:
    async with pool(1, max_inflight_per_worker=1) as (router, [worker]):
        worker.hold()
        first = asyncio.create_task(generate(router, "first"))
        await worker.wait_for_requests(1)
        async with RawClient(router.port) as client:
            await client.send(build_request("POST", "/generate", (), json=ASK, host="h"))
            await held(router, 1)
            last = asyncio.create_task(generate(router, "last"))
            await held(router, 2)
        await held(router, 1)
        worker.release()
        assert [answer.status for answer in await asyncio.gather(first, last)] == [200, 200]
        assert [request.json()["text"] for request in worker.requests] == ["first", "last"]


async def test_a_full_queue_is_a_503_with_retry_after() -> None:
    async with pool(1, max_inflight_per_worker=1, router={"max_held_requests": 1}) as (router, [worker]):
        worker.hold()
        asking = [asyncio.create_task(generate(router))]
        await worker.wait_for_requests(1)
        asking.append(asyncio.create_task(generate(router)))
        await held(router, 1)
        answer = await generate(router)
        assert (answer.status, answer.get("retry-after"), answer.get("x-router-error")) == (503, "1", "hold_queue_full")
        worker.release()
        assert [answer.status for answer in await asyncio.gather(*asking)] == [200, 200]


async def test_a_place_gets_free_however_a_request_ends() -> None:
    async with pool(1, max_inflight_per_worker=1) as (router, [worker]):
        for fault in (
            Faults.close_before_answer(),
            Faults.close_amid(),
            Faults.status(500),
            Faults.garbage(),
            Faults.early_answer(),
        ):
            worker.fault(Faults.delay(0.01), fault)
            first, second = await asyncio.gather(generate(router), generate(router))
            assert 200 in (first.status, second.status)
        assert inflight(router) == [0]


async def test_300_requests_over_two_workers_never_pass_the_bound() -> None:
    most = 0

    class Watch:
        @hookimpl
        async def attempt_start(self, attempt: Attempt) -> None:
            nonlocal most
            most = max(most, attempt.worker.inflight)

    async with pool(2, classes=[Watch], max_inflight_per_worker=4) as (router, workers):
        for worker in workers:
            worker.fault(Faults.delay(0.002), times=None)
        answers = await asyncio.gather(*(generate(router, at, timeout_s=50) for at in range(300)))
        assert {answer.status for answer in answers} == {200}
        assert most == 4
        assert sum(len(worker.requests) for worker in workers) == 300
        assert (inflight(router), len(router.application.holds)) == ([0, 0], 0)


async def test_a_worker_that_dies_leaves_those_who_wait_to_the_other() -> None:
    async with pool(2, max_inflight_per_worker=1) as (router, [first, second]):
        for worker in (first, second):
            worker.hold()
        asking = [asyncio.create_task(generate(router, at)) for at in range(5)]
        await held(router, 3)
        await first.wait_for_requests(1)
        await first.stop()
        second.release()
        answers = await asyncio.gather(*asking)
        assert sorted(answer.status for answer in answers) == [200, 200, 200, 200, 502]
        assert inflight(router) == [0, 0]


# -------------------------------------------------------------------------------------------------------------- KV use
@pytest.mark.parametrize("name", ["kv_usage", "token_usage"])
async def test_a_worker_whose_kv_cache_is_too_full_gets_nothing_until_it_is_less_full(name: str) -> None:
    async with pool(2, max_kv_usage=0.9) as (router, [first, second]):
        await push(router, first, **{name: 0.9})
        answers = [await generate(router) for _ in range(4)]
        assert {answer.get("x-router-worker") for answer in answers} == {second.url}
        await push(router, second, **{name: 0.95})
        waiting = asyncio.create_task(generate(router))
        await held(router, 1)
        await push(router, first, **{name: 0.3})
        assert (await waiting).get("x-router-worker") == first.url


async def test_old_statistics_say_nothing() -> None:
    async with pool(1, max_kv_usage=0.9, stats_ttl_s=0.05, reserve_retry_s=0.02) as (router, [worker]):
        await push(router, worker, kv_usage=1.0)
        assert (await generate(router)).status == 200


# --------------------------------------------------------------------------------------------------------- reservations
def reserving(verdicts: list[int], seen: list[Any]) -> Callable[[ScriptedRequest, Connection], Any]:
    """Answers reserve calls with these statuses, then 200."""

    async def handler(request: ScriptedRequest, connection: Connection) -> bool:
        seen.append(request.json())
        return await reply(status=verdicts.pop(0) if verdicts else 200)(request, connection)

    return handler


def answering(worker: ScriptedWorker, reserve: Callable[[ScriptedRequest, Connection], Any]) -> None:
    async def handler(request: ScriptedRequest, connection: Connection) -> bool:
        return bool(await (reserve if request.path == "/reserve" else worker.engine.answer)(request, connection))

    worker.handler = handler


def generated(*workers: ScriptedWorker) -> list[int]:
    return [sum(request.path == "/generate" for request in worker.requests) for worker in workers]


async def test_a_worker_is_asked_before_each_dispatch() -> None:
    seen: list[Any] = []
    async with pool(1, reserve_url="/reserve") as (router, [worker]):
        answering(worker, reserving([], seen))
        answer = await generate(router, headers={"x-session-id": "s"})
        assert (answer.status, answer.get("x-router-attempts")) == (200, "1")
        assert [request.path for request in worker.requests] == ["/reserve", "/generate"]
        [told] = seen
        assert (told["worker_url"], told["session_id"], told["target"]) == (worker.url, "s", "/generate")
        assert told["body_bytes"] == len(worker.requests[1].body)


async def test_a_request_that_one_worker_refuses_goes_to_another() -> None:
    async with pool(2, reserve_url="/reserve") as (router, [first, second]):
        answering(first, reserving([503] * 10, []))
        answering(second, reserving([], []))
        answers = [await generate(router) for _ in range(4)]
        assert {answer.status for answer in answers} == {200}
        assert generated(first, second) == [0, 4]


async def test_what_nobody_admits_waits_and_is_asked_for_again() -> None:
    seen: list[Any] = []
    async with pool(1, reserve_url="/reserve", reserve_retry_s=0.02) as (router, [worker]):
        answering(worker, reserving([429, 503, 409], seen))
        answer = await generate(router)
        assert (answer.status, len(seen), generated(worker)) == (200, 4, [1])
        assert 'reservations_total{verdict="refused"} 3' in router.application.outside.metrics()


async def test_one_service_may_be_asked_for_all_workers() -> None:
    async with ScriptedWorker() as service:
        service.handler = reply_json({"admitted": False})
        async with pool(2, reserve_url=f"{service.url}/may/i", reserve_retry_s=0.02) as (router, workers):
            waiting = asyncio.create_task(generate(router))
            await service.wait_for_requests(2)
            assert generated(*workers) == [0, 0]
            service.handler = reply_json({"admitted": True})
            assert (await waiting).status == 200
            assert {request.path for request in service.requests} == {"/may/i"}


@pytest.mark.parametrize("then", ["hold", "admit"])
async def test_a_reserve_call_has_a_deadline(then: str) -> None:
    async with ScriptedWorker() as service:
        service.fault(Faults.stall(), times=None)
        settings = {"reserve_timeout_s": 0.05, "reserve_retry_s": 0.02, "reserve_on_failure": then}
        async with pool(1, reserve_url=service.url, router={"hold_timeout_s": 0.3}, **settings) as (router, [worker]):
            answer = await generate(router)
            assert (answer.status, generated(worker)) == ((200, [1]) if then == "admit" else (503, [0]))


async def test_no_more_reserve_calls_than_allowed_are_under_way() -> None:
    go_on = asyncio.Event()
    async with ScriptedWorker() as service:
        service.fault(Faults.hold(go_on), times=None)
        service.handler = reply()
        settings = {"max_reserve_calls": 3, "reserve_timeout_s": 10.0}
        async with pool(1, reserve_url=service.url, **settings) as (router, [worker]):
            asking = [asyncio.create_task(generate(router)) for _ in range(10)]
            await service.wait_for_requests(3)
            await held(router, 7)
            assert service.live == 3
            go_on.set()
            assert {answer.status for answer in await asyncio.gather(*asking)} == {200}
            assert generated(worker) == [10]


async def test_a_client_that_leaves_during_a_reserve_call_leaves_nothing_behind() -> None:
    async with ScriptedWorker() as service:
        service.fault(Faults.stall(), times=None)
        async with pool(1, reserve_url=service.url, reserve_timeout_s=10.0) as (router, [worker]):
            async with RawClient(router.port) as client:
                await client.send(build_request("POST", "/generate", (), json=ASK, host="h"))
                await service.wait_for_requests(1)
            await service.wait_until_idle()
            await until(lambda: inflight(router) == [0])
            assert worker.requests == []


# ---------------------------------------------------------------------------------------------------------------- order
async def test_sorting_by_version_keeps_fresh_workers_for_those_that_need_them() -> None:
    enabled = ("weight_version", "admission", "least_inflight")
    async with pool(3, enabled=enabled, sort="version") as (router, workers):
        body = [{"worker_id": worker.url, "weight_version": str(at)} for at, worker in enumerate(workers, 4)]
        await exchange_once(router.port, "POST", "/workers/update_weight_version", json=body)
        assert {(await generate(router)).get("x-router-worker") for _ in range(3)} == {workers[2].url}
        for tag, worker in ((4, workers[0]), (5, workers[1]), (6, workers[2])):
            answers = [await generate(router, headers={"x-version-tag": str(tag)}) for _ in range(3)]
            assert {answer.get("x-router-worker") for answer in answers} == {worker.url}


async def test_sorting_by_reserve_prefers_the_most_room() -> None:
    async with pool(2, enabled=("admission",), sort="reserve") as (router, [first, second]):
        await push(router, first, kv_usage=0.8)
        await push(router, second, kv_usage=0.2)
        assert {(await generate(router)).get("x-router-worker") for _ in range(4)} == {second.url}


@pytest.mark.parametrize(
    "settings",
    [
        {"max_inflight": 0},
        {"max_kv_usage": 1.5},
        {"reserve_url": "ftp://h"},
        {"reserve_url": "reserve"},
        {"sort": "best"},
        {"kv_keys": []},
        {"max_infligth": 1},
    ],
)
async def test_wrong_settings_are_errors_at_start(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"plugins\.admission\."):
        async with pool(0, **settings):
            pass
