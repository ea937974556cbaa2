"""Pauses over real sockets: nothing is sent in one, nothing is lost in one."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from router_core import Attempt, hookimpl
from router_core.testing import (
    Connection,
    Handler,
    RawAnswer,
    RawClient,
    ScriptedRequest,
    ScriptedWorker,
    build_request,
    exchange_once,
)
from router_core.testing.router import RunningRouter, running_router

ASK = {"text": "hi"}
QUIET = {"version_path": "", "learn_max_bytes": 0}


@asynccontextmanager
async def pool(
    count: int, *, classes: list[type[Any]] | None = None, **settings: Any
) -> AsyncIterator[tuple[RunningRouter, list[ScriptedWorker]]]:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker()) for _ in range(count)]
        router = await stack.enter_async_context(
            running_router(
                [worker.url for worker in workers],
                enabled=["weight_version", "least_inflight"],
                plugins={"weight_version": {**QUIET, **settings}},
                classes=classes or [],
            )
        )
        yield router, workers


async def call(router: RunningRouter, method: str, target: str, json: object = None) -> RawAnswer:
    return await exchange_once(router.port, method, target, json=json)


async def pause(router: RunningRouter, query: str = "wait=true", where: str = "/routing") -> Any:
    answer = await call(router, "POST", f"{where}/pause?{query}")
    assert answer.status == 200, answer.body
    return answer.json()


async def resume(router: RunningRouter, query: str = "", where: str = "/routing") -> Any:
    answer = await call(router, "POST", f"{where}/resume?{query}")
    assert answer.status == 200, answer.body
    return answer.json()


async def until(is_true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110 - the router sets no event for tests
            await asyncio.sleep(0.001)


async def held(router: RunningRouter, count: int) -> None:
    await until(lambda: len(router.application.holds) == count)


@pytest.mark.parametrize("where", ["/routing", "/routing_loop", "/workers"])
async def test_new_requests_are_held_and_running_ones_go_on(where: str) -> None:
    async with pool(1) as (router, [worker]):
        worker.say("one", hold_after=0)
        running = asyncio.create_task(exchange_once(router.port, json=ASK))
        await worker.wait_for_requests(1)
        told = await pause(router, where=where)
        assert (told["status"], told["handed_over"], told["workers"], told["inflight"]) == ("paused", True, "all", 1)
        waiting = [asyncio.create_task(exchange_once(router.port, json=ASK)) for _ in range(3)]
        await held(router, 3)
        worker.release()
        assert (await running).status == 200
        assert len(worker.requests) == 1
        assert (await resume(router, where=where))["status"] == "running"
        assert [answer.status for answer in await asyncio.gather(*waiting)] == [200] * 3


async def test_the_status_says_what_is_paused_and_who_waits() -> None:
    async with pool(1) as (router, [worker]):
        status = (await call(router, "GET", "/routing/status")).json()
        assert (status["paused"], status["held"]["total"], status["queue"]) == (False, 0, [])
        await pause(router, "ttl=30")
        headers = {"x-session-id": "s", "x-version-tag": "0"}
        waiting = asyncio.create_task(exchange_once(router.port, headers=headers, json=ASK))
        await held(router, 1)
        for prefix in ("/routing", "/routing_loop"):
            status = (await call(router, "GET", f"{prefix}/status")).json()
            assert status["paused"] is True
            assert 0 < status["ends_in_s"] <= 30
            assert (status["held"]["total"], status["held"]["by_kind"]) == (1, {"paused": 1})
            [entry] = status["queue"]
            assert (entry["session_id"], entry["version_tag"], entry["kind"]) == ("s", "0", "paused")
            assert status["workers"][0]["url"] == worker.url
        assert (await call(router, "GET", "/routing/status?limit=0")).json()["queue"] == []
        body = [{"worker_id": worker.url, "weight_version": "0"}]
        await call(router, "POST", "/workers/update_weight_version", body)
        await resume(router)
        assert (await waiting).status == 200


async def test_a_paused_router_is_ready() -> None:
    async with pool(1) as (router, _):
        await pause(router)
        assert (await call(router, "GET", "/readiness")).status == 200
        assert (await call(router, "GET", "/health")).status == 200


async def test_requests_are_held_in_a_pause_even_while_no_worker_is_there() -> None:
    """Colocated training: the workers leave for the update and come back."""
    async with pool(1) as (router, [worker]):
        await pause(router)
        await call(router, "POST", f"/remove_worker?url={worker.url}")
        waiting = asyncio.create_task(exchange_once(router.port, json=ASK))
        await held(router, 1)
        await call(router, "POST", "/workers", {"url": worker.url, "weight_version": "2"})
        await resume(router)
        answer = await waiting
        assert (answer.status, answer.get("x-router-weight-version")) == (200, "2")


async def test_a_client_that_leaves_in_a_pause_is_gone() -> None:
    async with pool(1) as (router, [worker]):
        await pause(router)
        async with RawClient(router.port) as client:
            await client.send(build_request("POST", "/generate", (), json=ASK, host="h"))
            await held(router, 1)
        await held(router, 0)
        await resume(router)
        assert (await exchange_once(router.port, json=ASK)).status == 200
        assert len(worker.requests) == 1


async def test_a_pause_is_a_lease_that_ends_by_itself_and_can_be_renewed() -> None:
    async with pool(1) as (router, _):
        await pause(router, "ttl=600")
        await pause(router, "ttl=0.1")
        assert (await exchange_once(router.port, json=ASK)).status == 200
        assert (await call(router, "GET", "/routing/status")).json()["paused"] is False
        assert "router_weight_version_leases_ended_total 1" in router.application.outside.metrics()


async def test_a_paused_worker_gets_nothing_and_others_do() -> None:
    async with pool(2) as (router, [first, second]):
        told = await pause(router, f"wait=true&worker_id={first.url}", where="/workers")
        assert len(told["workers"]) == 1
        answers = [await exchange_once(router.port, json=ASK) for _ in range(3)]
        assert {answer.get("x-router-worker") for answer in answers} == {second.url}
        status = (await call(router, "GET", "/routing/status")).json()
        assert (status["paused"], [worker["paused"] for worker in status["workers"]]) == (False, [True, False])
        both = {"worker_ids": [first.url, second.url]}
        assert (await call(router, "POST", "/routing/pause", both)).status == 200
        waiting = asyncio.create_task(exchange_once(router.port, json=ASK))
        await held(router, 1)
        await resume(router, f"worker_id={first.url}")
        assert (await waiting).get("x-router-worker") == first.url


async def test_a_pause_of_all_leaves_the_pause_of_one_worker_alone() -> None:
    async with pool(2) as (router, [first, second]):
        await pause(router, f"worker_id={first.url}")
        await pause(router)
        await resume(router)
        answers = [await exchange_once(router.port, json=ASK) for _ in range(3)]
        assert {answer.get("x-router-worker") for answer in answers} == {second.url}


async def test_the_filter_says_who_may_serve_a_tag() -> None:
    async with pool(3) as (router, workers):
        body = [{"worker_id": worker.url, "weight_version": str(at)} for at, worker in enumerate(workers, 4)]
        await call(router, "POST", "/workers/update_weight_version", body)
        await pause(router, f"worker_id={workers[2].url}")
        for prefix in ("/routing", "/routing_loop"):
            told = (await call(router, "GET", f"{prefix}/filter?version_tag=5")).json()
            assert [worker["url"] for worker in told["workers"]] == [workers[1].url]
            assert told["out"] == {
                workers[0].url: "weight version 4; 5 or newer may serve (the request's tag)",
                workers[2].url: "the worker is paused",
            }
        assert len((await call(router, "GET", "/routing/filter")).json()["workers"]) == 2


@pytest.mark.parametrize(
    ("method", "target", "body", "param", "status"),
    [
        ("POST", "/routing/pause?wait=maybe", None, "wait", 400),
        ("POST", "/routing/pause?timeout=soon", None, "timeout", 400),
        ("POST", "/routing/pause?timeout=-1", None, "timeout", 400),
        ("POST", "/routing/pause?timeout=nan", None, "timeout", 400),
        ("POST", "/routing/pause?timeout=inf", None, "timeout", 400),
        ("POST", "/routing/pause?ttl=0", None, "ttl", 400),
        ("POST", "/routing/pause?ttl=1e9", None, "ttl", 400),
        ("POST", "/routing/pause", {"ttl": True}, "ttl", 400),
        ("POST", "/routing/pause", {"ttl": [{}]}, "ttl", 400),
        ("POST", "/routing/pause?timout=3", None, "timout", 400),
        ("POST", "/routing/pause", {"x": 1}, "x", 400),
        ("POST", "/routing/pause", [1], None, 400),
        ("POST", "/routing/pause?worker_id=w-nobody", None, "worker_id", 404),
        ("POST", "/routing/pause", {"worker_ids": [7]}, "worker_id", 404),
        ("POST", "/routing/resume?worker_id=w-nobody", None, "worker_id", 404),
        ("POST", "/routing/resume?wait=true", None, "wait", 400),
        ("GET", "/routing/status?limit=-1", None, "limit", 400),
        ("GET", "/routing/status?limit=many", None, "limit", 400),
        ("GET", "/routing/filter?version_tag=new", None, "version_tag", 400),
        ("GET", "/routing/pause", None, None, 405),
        ("GET", "/routing/nothing", None, None, 404),
    ],
)
async def test_bad_input_is_refused_by_name_and_pauses_nothing(
    method: str, target: str, body: object, param: str | None, status: int
) -> None:
    async with pool(1) as (router, _):
        answer = await call(router, method, target, body)
        assert (answer.status, answer.json()["error"].get("param")) == (status, param)
        assert (await exchange_once(router.port, json=ASK)).status == 200


# ---------------------------------------------------------------------------------------------------- what is half done
async def test_a_decision_that_is_not_sent_yet_is_taken_again_after_the_pause() -> None:
    """The worker is chosen, and the update comes before a byte was sent; meanwhile that worker is gone."""
    reached, go_on = asyncio.Event(), asyncio.Event()
    chosen: list[str] = []

    class Slow:
        @hookimpl
        async def attempt_start(self, attempt: Attempt) -> None:
            chosen.append(attempt.worker.url)
            reached.set()
            await go_on.wait()

    async with pool(2, classes=[Slow]) as (router, workers):
        asking = asyncio.create_task(exchange_once(router.port, json=ASK))
        await reached.wait()
        told = await pause(router)
        assert told["handed_over"] is True
        go_on.set()
        await held(router, 1)
        assert [worker.requests for worker in workers] == [[], []]
        assert [worker.inflight for worker in router.application.workers] == [0, 0]
        await call(router, "POST", f"/remove_worker?url={chosen[0]}")
        await resume(router)
        answer = await asking
        assert (answer.status, answer.get("x-router-worker") != chosen[0], len(chosen)) == (200, True, 2)


async def test_a_decision_before_a_pause_is_void_even_when_that_is_over() -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()
    attempts = 0

    class Slow:
        @hookimpl
        async def attempt_start(self, attempt: Attempt) -> None:
            nonlocal attempts
            attempts += 1
            reached.set()
            await go_on.wait()

    async with pool(1, classes=[Slow]) as (router, [worker]):
        asking = asyncio.create_task(exchange_once(router.port, json=ASK))
        await reached.wait()
        await pause(router, f"worker_id={worker.url}")
        await resume(router, f"worker_id={worker.url}")
        go_on.set()
        assert (await asking).status == 200
        assert (attempts, len(worker.requests)) == (2, 1)
        assert "router_weight_version_withdrawn_attempts_total 1" in router.application.outside.metrics()


async def test_waiting_for_a_pause_waits_for_uploads_under_way() -> None:
    body = json.dumps({"text": "x" * 300_000}).encode()
    whole = build_request("POST", "/generate", (), body, host="h")
    async with pool(1) as (router, [worker]), RawClient(router.port) as client:
        await client.send(whole[:200_000])
        await worker.wait_until(lambda: len(worker.requests) == 1)
        late = await call(router, "POST", "/routing/pause?wait=true&timeout=0.05")
        assert (late.status, late.json()["handed_over"], late.json()["on_the_way"]) == (202, False, 1)
        pausing = asyncio.create_task(pause(router, "wait=true&timeout=10"))
        await client.send(whole[200_000:])
        assert (await pausing)["handed_over"] is True
        assert (await client.read_answer()).status == 200
        assert worker.requests[0].body == body


@pytest.mark.timeout(240)
async def test_512_requests_in_flight_through_20_rounds_of_pause_update_and_resume_see_no_error() -> None:
    """Nothing is sent in a pause, and nothing comes to a worker whose weights are older than its tag."""
    is_over = is_in_pause = False
    version = served = 0
    wrong: list[str] = []

    class Watch:
        @hookimpl
        async def attempt_start(self, attempt: Attempt) -> None:
            attempt.before_send(lambda: wrong.append("sent in a pause") if is_in_pause else None)

    def slow(worker: ScriptedWorker) -> Handler:
        """Generations of 0.2 to 2 s, so that most of them live through several rounds."""

        async def handler(request: ScriptedRequest, connection: Connection) -> bool:
            if int(request.get("x-version-tag") or 0) > int(worker.engine.weight_version):
                wrong.append(f"a tag above {worker.engine.weight_version}: {request.raw!r}")
            await connection.unless_left(asyncio.sleep(seconds.uniform(0.2, 2.0)))
            return await worker.engine.answer(request, connection)

        return handler

    seconds = random.Random(0)
    async with pool(2, classes=[Watch], learn_max_bytes=1 << 16) as (router, workers):

        async def set_version() -> None:
            for worker in workers:
                worker.engine.weight_version = str(version)
            body = [{"worker_id": worker.url, "weight_version": str(version)} for worker in workers]
            assert (await call(router, "POST", "/workers/update_weight_version", body)).status == 200

        async def roll_out(at: int) -> None:
            nonlocal served
            async with RawClient(router.port) as client:
                while not is_over and not wrong:
                    headers = {"x-version-tag": str(version), "x-session-id": f"s{at}"}
                    answer = await client.request(headers=headers, json=ASK, timeout_s=50)
                    if answer.status != 200 or not answer.clean:
                        wrong.append(f"{answer.status} {answer.body!r}")
                    served += 1

        await set_version()
        for worker in workers:
            worker.handler = slow(worker)
        rolling = [asyncio.create_task(roll_out(at)) for at in range(512)]
        for round_ in range(1, 21):
            goal = served + 64
            await until(lambda goal=goal: served >= goal or wrong)  # type: ignore[misc]
            assert (await pause(router, "wait=true&timeout=20"))["handed_over"] is True
            is_in_pause = True
            version = round_
            await set_version()
            is_in_pause = False
            assert (await resume(router))["was_paused"] is True
        is_over = True
        await asyncio.gather(*rolling)
        assert wrong == []
        assert served > 20 * 64
        assert len(router.application.holds) == 0
        assert [worker.inflight for worker in router.application.workers] == [0, 0]


async def test_a_coordinator_drains_requests_of_old_versions_from_the_queue() -> None:
    async with pool(1) as (router, [worker]):
        await pause(router)
        asked = {
            tag: asyncio.create_task(exchange_once(router.port, headers=[("x-version-tag", tag)], json=ASK))
            for tag in ("1", "2", "3")
        }
        untagged = asyncio.create_task(exchange_once(router.port, json=ASK))
        await held(router, 4)
        told = await call(router, "POST", "/routing/drain?older_than=3")
        assert (told.status, told.json()) == (200, {"drained": 2, "held": 2})
        for tag in ("1", "2"):
            answer = await asked[tag]
            assert (answer.status, answer.json()["error"]["code"]) == (409, "drained")
        await held(router, 2)
        told = await call(router, "POST", "/routing_loop/drain?older_than=3&untagged=true")
        assert told.json()["drained"] == 1
        assert (await untagged).status == 409
        await call(router, "POST", "/workers/update_weight_version", [{"worker_id": worker.url, "weight_version": "3"}])
        await resume(router)
        assert (await asked["3"]).status == 200


@pytest.mark.parametrize(
    "query", ["", "older_than=", "older_than=new", "older_than=3&more=1", "older_than=3&untagged=2"]
)
async def test_a_wrong_drain_is_refused(query: str) -> None:
    async with pool(1) as (router, _):
        assert (await call(router, "POST", f"/routing/drain?{query}")).status == 400
