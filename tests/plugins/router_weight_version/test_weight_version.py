"""Tags, versions and their confirmation over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from router_core import Worker
from router_core.reference_engine import running_engine
from router_core.testing import Faults, RawAnswer, ScriptedWorker, exchange_once
from router_core.testing.router import RunningRouter, running_router

ASK = {"text": "hi"}
QUIET = {"version_path": "", "learn_max_bytes": 0}
"""Settings under which versions are only what the test states."""


@asynccontextmanager
async def scripted(count: int) -> AsyncIterator[list[ScriptedWorker]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(ScriptedWorker()) for _ in range(count)]


@asynccontextmanager
async def pool(
    *versions: str | None, router: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[RunningRouter, list[ScriptedWorker]]]:
    """A router before one worker of each version."""
    async with (
        scripted(len(versions)) as workers,
        running_router(
            [worker.url for worker in workers],
            enabled=["weight_version", "least_inflight"],
            plugins={"weight_version": {**QUIET, **settings}},
            router=router,
        ) as running,
    ):
        for worker, version in zip(workers, versions, strict=True):
            if version is not None:
                await state(running, worker, version)
        yield running, workers


async def state(router: RunningRouter, worker: ScriptedWorker, version: str, **more: Any) -> None:
    worker.engine.weight_version = version
    body = [{"worker_id": worker.url, "weight_version": version, **more}]
    assert (await call(router, "POST", "/workers/update_weight_version", body)).status == 200


async def call(router: RunningRouter, method: str, target: str, json: object = None) -> RawAnswer:
    return await exchange_once(router.port, method, target, json=json)


async def generate(router: RunningRouter, tag: object = None, session: str | None = None, **more: Any) -> RawAnswer:
    headers = dict(more.pop("headers", {}))
    if tag is not None:
        headers["x-version-tag"] = str(tag)
    if session is not None:
        headers["x-session-id"] = session
    return await exchange_once(router.port, headers=headers, json={**ASK, **more})


async def until(is_true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110 - the router sets no event for tests
            await asyncio.sleep(0.001)


async def held(router: RunningRouter, count: int) -> None:
    await until(lambda: len(router.application.holds) == count)


def known(router: RunningRouter, worker: ScriptedWorker) -> Worker:
    found = router.application.workers.get(worker.url)
    assert found is not None
    return found


# --------------------------------------------------------------------------------------------------------------- tags
async def test_a_tagged_request_goes_only_to_workers_at_its_version_or_newer() -> None:
    async with pool("9", "10", "default", None) as (router, workers):
        for tag, fits in ((10, {workers[1].url}), (9, {workers[0].url, workers[1].url})):
            answers = [await generate(router, tag) for _ in range(4)]
            assert {answer.get("x-router-worker") for answer in answers} == fits
            assert {answer.get("x-version-tag") for answer in answers} == {str(tag)}
        untagged = [await generate(router) for _ in range(4)]
        assert {answer.get("x-router-worker") for answer in untagged} == {worker.url for worker in workers}
        assert {answer.get("x-version-tag") for answer in untagged} == {None}


async def test_the_answer_says_the_version_that_served_it() -> None:
    async with pool("7") as (router, workers):
        assert (await generate(router)).get("x-router-weight-version") == "7"
        workers[0].refuse()
        assert (await generate(router)).get("x-router-weight-version") == "7"  # a connection that was kept
        await workers[0].stop()
        refused = await generate(router)
        assert (refused.status, refused.get("x-router-weight-version")) == (502, None)


@pytest.mark.parametrize("tag", ["default", "-1", "1.5", "0x10", "", "9" * 33, "7, 8", "٣".encode().decode("latin-1")])
async def test_a_tag_that_is_no_number_is_a_400_naming_the_header(tag: str) -> None:
    async with pool("7") as (router, workers):
        answer = await generate(router, tag)
        error = answer.json()["error"]
        assert (answer.status, error["code"], error["param"]) == (400, "bad_version_tag", "x-version-tag")
        assert workers[0].requests == []


async def test_of_several_tags_the_newest_counts() -> None:
    async with pool("7", "8") as (router, workers):
        answer = await exchange_once(router.port, headers=[("x-version-tag", "7"), ("x-version-tag", "8")], json=ASK)
        assert answer.get("x-router-worker") == workers[1].url


async def test_without_the_wish_to_wait_the_503_says_each_workers_version() -> None:
    async with pool("9", "default", hold_for_version=False) as (router, workers):
        answer = await generate(router, 10)
        assert (answer.status, answer.get("retry-after")) == (503, "1")
        reasons = answer.json()["error"]["workers"]
        assert reasons[workers[0].url] == "weight version 9; 10 or newer may serve (the request's tag)"
        assert reasons[workers[1].url] == "weight version unknown; 10 or newer may serve (the request's tag)"


async def test_a_request_waits_for_a_worker_that_is_fresh_enough_and_publishing_aborts_nothing() -> None:
    async with pool("9", "9") as (router, workers):
        for worker in workers:
            worker.hold()
        running = [asyncio.create_task(generate(router)) for _ in range(2)]
        for worker in workers:
            await worker.wait_for_requests(1)
        waiting = asyncio.create_task(generate(router, 10))
        await held(router, 1)
        await state(router, workers[1], "10")
        await workers[1].wait_for_requests(2)
        for worker in workers:
            worker.release()
        assert [answer.status for answer in await asyncio.gather(*running)] == [200, 200]
        answer = await waiting
        assert (answer.status, answer.get("x-router-weight-version")) == (200, "10")


async def test_whoever_waits_for_a_version_in_vain_gets_a_typed_503() -> None:
    async with pool("9", router={"hold_timeout_s": 0.05}) as (router, _):
        answer = await generate(router, 10)
        error = answer.json()["error"]
        assert (answer.status, error["code"]) == (503, "hold_timeout")
        assert "weight version 9; 10 or newer may serve" in error["message"]


async def test_a_full_queue_is_a_503_with_retry_after() -> None:
    async with pool("9", router={"max_held_requests": 2}) as (router, workers):
        waiting = [asyncio.create_task(generate(router, 10)) for _ in range(2)]
        await held(router, 2)
        answer = await generate(router, 10)
        assert (answer.status, answer.json()["error"]["code"]) == (503, "hold_queue_full")
        assert answer.get("retry-after") == "1"
        await state(router, workers[0], "10")
        assert [answer.status for answer in await asyncio.gather(*waiting)] == [200, 200]


async def test_a_new_worker_that_is_fresh_enough_takes_who_waits() -> None:
    async with pool("9") as (router, _), ScriptedWorker() as newcomer:
        waiting = asyncio.create_task(generate(router, 10))
        await held(router, 1)
        await call(router, "POST", "/workers", {"url": newcomer.url, "weight_version": 10})
        assert (await waiting).get("x-router-worker") == newcomer.url


async def test_a_request_of_a_pending_version_waits_for_the_sync() -> None:
    async with pool("9", hold_for_version=False) as (router, workers):
        body = [{"worker_id": known(router, workers[0]).id, "pending_weight_version": "10"}]
        assert (await call(router, "POST", "/workers/update_weight_version", body)).status == 200
        waiting = asyncio.create_task(generate(router, 10))
        await held(router, 1)
        assert (await generate(router, 11)).status == 503
        assert (await generate(router, 9)).status == 200
        [told] = (await call(router, "GET", "/workers")).json()["workers"]
        assert (told["weight_version"], told["pending_weight_version"]) == ("9", "10")
        await state(router, workers[0], "10")
        assert (await waiting).get("x-router-weight-version") == "10"
        [told] = (await call(router, "GET", "/workers")).json()["workers"]
        assert (told["weight_version"], told["pending_weight_version"]) == ("10", None)


async def test_a_pending_version_ends_when_the_worker_itself_says_so() -> None:
    async with pool("9", version_path="/get_model_info", ask_interval_s=0.01) as (router, workers):
        body = [{"worker_id": workers[0].url, "pending_weight_version": "10"}]
        await call(router, "POST", "/workers/update_weight_version", body)
        waiting = asyncio.create_task(generate(router, 10))
        await workers[0].wait_for_health_requests(3)
        assert len(router.application.holds) == 1
        workers[0].engine.weight_version = "10"
        assert (await waiting).status == 200


# ----------------------------------------------------------------------------------------------------------- sessions
async def test_an_untagged_session_is_tagged_with_the_version_that_first_served_it() -> None:
    async with pool("5") as (router, workers):
        first = await generate(router, session="s")
        assert first.get("x-version-tag") == "5"
        assert workers[0].requests[0].get("x-version-tag") is None
        await state(router, workers[0], "6")
        again = await generate(router, session="s")
        assert (again.get("x-version-tag"), again.get("x-router-weight-version")) == ("5", "6")
        assert workers[0].requests[1].get("x-version-tag") == "5"
        assert (await generate(router, session="other")).get("x-version-tag") == "6"


async def test_later_turns_never_go_to_an_older_worker_be_it_idle() -> None:
    async with pool("5", "4") as (router, workers):
        assert (await generate(router, 5, session="s")).get("x-router-worker") == workers[0].url
        workers[0].hold()
        turns = [asyncio.create_task(generate(router, session="s")) for _ in range(6)]
        await workers[0].wait_for_requests(7)
        workers[0].release()
        assert {answer.status for answer in await asyncio.gather(*turns)} == {200}
        assert workers[1].requests == []


async def test_a_tag_below_the_sessions_version_does_not_take_it_back() -> None:
    async with pool("5", "3") as (router, workers):
        assert (await generate(router, 5, session="s")).get("x-version-tag") == "5"
        answers = [await generate(router, 3, session="s") for _ in range(4)]
        assert {answer.get("x-router-worker") for answer in answers} == {workers[0].url}
        assert {answer.get("x-version-tag") for answer in answers} == {"5"}


async def test_a_turn_that_failed_sets_no_version() -> None:
    async with pool("5") as (router, workers):
        workers[0].fault(Faults.close_before_answer())
        assert (await generate(router, session="s")).status == 502
        workers[0].fault(Faults.status(500))
        assert (await generate(router, session="s")).status == 500
        await state(router, workers[0], "4")
        assert (await generate(router, session="s")).get("x-version-tag") == "4"


async def test_two_first_turns_at_once_do_not_end_on_an_older_worker() -> None:
    async with pool("5", "4") as (router, workers):
        for worker in workers:
            worker.hold()
        first = asyncio.create_task(generate(router, 5, session="s"))
        await workers[0].wait_for_requests(1)
        second = asyncio.create_task(generate(router, session="s"))
        await workers[0].wait_for_requests(2)
        for worker in workers:
            worker.release()
        assert {answer.get("x-version-tag") for answer in await asyncio.gather(first, second)} == {"5"}


async def test_an_open_session_may_bind_a_tag_and_shows_what_served_it() -> None:
    async with pool("5", "6") as (router, workers):
        bad = await call(router, "POST", "/sessions", {"session_id": "t", "version_tag": "new"})
        assert (bad.status, bad.json()["error"]["param"]) == (400, "version_tag")
        assert (await call(router, "POST", "/sessions", {"session_id": "s", "version_tag": 6})).status == 200
        turn = await exchange_once(router.port, target="/sessions/s/generate", json=ASK)
        assert (turn.get("x-version-tag"), turn.get("x-router-worker")) == ("6", workers[1].url)
        assert (await call(router, "GET", "/sessions/s")).json()["served_by_version"] == "6"
        assert (await call(router, "DELETE", "/sessions/s")).status == 204
        await state(router, workers[1], "2")
        assert (await call(router, "POST", "/sessions", {"session_id": "s"})).status == 200
        quarantine(router, workers[0])
        turn = await exchange_once(router.port, target="/sessions/s/generate", json=ASK)
        assert (turn.status, turn.get("x-version-tag")) == (200, "2")


# ---------------------------------------------------------------------------------------------------------- staleness
async def test_workers_that_are_too_far_behind_get_nothing() -> None:
    async with pool("9", "7", "default", max_staleness=1) as (router, workers):
        answers = [await generate(router) for _ in range(5)]
        assert {answer.get("x-router-worker") for answer in answers} == {workers[0].url}


async def test_a_session_that_began_too_long_ago_is_dropped_before_dispatch() -> None:
    async with pool("5", max_staleness=2) as (router, workers):
        assert (await generate(router, session="s")).status == 200
        await state(router, workers[0], "7")
        assert (await generate(router, session="s")).status == 200
        await state(router, workers[0], "8")
        answer = await generate(router, session="s")
        error = answer.json()["error"]
        assert (answer.status, error["code"], error["param"]) == (409, "too_stale", "x-version-tag")
        assert len(workers[0].requests) == 2
        assert "router_weight_version_too_stale_total 1" in router.application.outside.metrics()


async def test_a_profile_may_bound_staleness() -> None:
    async with (
        scripted(1) as (worker,),
        running_router(
            [worker.url],
            enabled=["weight_version"],
            plugins={"weight_version": QUIET},
            profiles={"fresh": {"plugins": {"weight_version": {"max_staleness": 0}}}},
        ) as router,
    ):
        await state(router, worker, "5")
        await generate(router, session="s")
        await state(router, worker, "6")
        assert (await generate(router, session="s")).status == 200
        assert (await generate(router, session="s", headers={"x-router-profile": "fresh"})).status == 409


# ------------------------------------------------------------------------------------------------------------- stating
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ([{"worker_id": "W"}], "weight_version"),
        ([{"worker_id": "W", "weight_version": ""}], "weight_version"),
        ([{"worker_id": "W", "weight_version": 1.5}], "weight_version"),
        ([{"worker_id": "W", "weight_version": True}], "weight_version"),
        ([{"worker_id": "W", "weight_version": "x" * 200}], "weight_version"),
        ([{"worker_id": "W", "pending_weight_version": ["1"]}], "pending_weight_version"),
        ([{"weight_version": "1"}], "worker_id"),
        ("8", "workers"),
        (None, "workers"),
    ],
)
async def test_a_wrong_statement_is_a_400_that_names_the_field(body: Any, param: str) -> None:
    async with pool("7") as (router, workers):
        if isinstance(body, list):
            body = [{key: workers[0].url if value == "W" else value for key, value in body[0].items()}]
        answer = await call(router, "POST", "/workers/update_weight_version", body)
        assert (answer.status, answer.json()["error"]["param"]) == (400, param)
        assert known(router, workers[0]).weight_version == "7"


async def test_a_statement_for_a_worker_that_is_gone_fails_alone() -> None:
    async with pool("7") as (router, workers):
        body = [{"worker_id": "w-gone", "weight_version": "8"}, {"worker_id": workers[0].url, "weight_version": 8}]
        answer = await call(router, "POST", "/workers/update_weight_version", body)
        assert (answer.status, len(answer.json()["failed"])) == (207, 1)
        assert known(router, workers[0]).weight_version == "8"


# ------------------------------------------------------------------------------------------------------------ learning
async def test_a_new_worker_is_asked_for_its_version() -> None:
    async with pool(None, version_path="/get_model_info") as (router, workers), ScriptedWorker() as newcomer:
        await until(lambda: known(router, workers[0]).weight_version == "default")
        newcomer.engine.weight_version = "12"
        await call(router, "POST", f"/add_worker?url={newcomer.url}")
        assert (await generate(router, 12)).get("x-router-worker") == newcomer.url


@pytest.mark.parametrize("stream", [True, False])
async def test_a_newer_version_is_learnt_from_an_answer(stream: bool) -> None:
    async with pool("7", learn_max_bytes=1 << 20) as (router, workers):
        workers[0].engine.weight_version = "8"
        assert (await generate(router, stream=stream)).get("x-router-weight-version") == "7"
        assert known(router, workers[0]).weight_version == "8"
        assert (await generate(router, 8, stream=stream)).status == 200


async def test_an_older_version_is_learnt_from_an_answer_that_began_after_the_statement() -> None:
    async with pool("7", learn_max_bytes=1 << 20) as (router, workers):
        workers[0].engine.weight_version = "6"
        await generate(router)
        assert known(router, workers[0]).weight_version == "6"
        assert known(router, workers[0]).pending_weight_version == "7"


async def test_an_answer_that_began_before_the_statement_takes_nothing_back() -> None:
    async with pool("7", learn_max_bytes=1 << 20) as (router, workers):
        workers[0].say("old weights", hold_after=0)
        running = asyncio.create_task(generate(router))
        await workers[0].wait_for_requests(1)
        await state(router, workers[0], "8")
        workers[0].engine.release()
        assert (await running).json()["meta_info"]["weight_version"] == "7"
        assert known(router, workers[0]).weight_version == "8"


async def test_a_worker_that_says_default_keeps_the_version_that_was_stated() -> None:
    async with pool("7", learn_max_bytes=1 << 20) as (router, workers):
        workers[0].engine.weight_version = "default"
        await generate(router)
        assert known(router, workers[0]).weight_version == "7"


async def test_versions_of_a_real_engine_are_asked_for_and_learnt() -> None:
    """The engine's weights change under the router; nobody tells it."""
    body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
    async with (
        running_engine(weight_version="3") as engine,
        running_router([engine.url], enabled=["weight_version", "least_inflight"]) as router,
    ):
        first = await exchange_once(router.port, headers={"x-version-tag": "3", "x-session-id": "s"}, json=body)
        assert (first.status, first.get("x-router-weight-version")) == (200, "3")
        assert first.json()["meta_info"]["weight_version"] == "3"
        updated = await exchange_once(engine.port, target="/update_weight_version", json={"new_version": "4"})
        assert updated.status == 200
        for stream in (True, False):
            answer = await exchange_once(router.port, json={**body, "stream": stream})
            assert answer.status == 200
        answer = await exchange_once(router.port, headers={"x-version-tag": "4"}, json=body)
        assert (answer.status, answer.get("x-router-weight-version")) == (200, "4")
        assert answer.json()["meta_info"]["weight_version"] == "4"


# ---------------------------------------------------------------------------------------------------------- confirming
def quarantine(router: RunningRouter, worker: ScriptedWorker) -> None:
    found = known(router, worker)
    router.application.workers.quarantine(found, found.generation, "a test says so")


def restore(router: RunningRouter, worker: ScriptedWorker) -> None:
    found = known(router, worker)
    router.application.workers.restore(found, found.generation)


async def test_a_recovered_worker_gets_nothing_before_its_version_is_stated() -> None:
    async with pool("7") as (router, workers):
        quarantine(router, workers[0])
        assert (await generate(router)).status == 503
        restore(router, workers[0])
        waiting = asyncio.create_task(generate(router))
        await held(router, 1)
        [told] = (await call(router, "GET", "/routing/status")).json()["workers"]
        assert (told["status"], told["is_version_confirmed"]) == ("ready", False)
        await state(router, workers[0], "7")
        assert (await waiting).status == 200


async def test_a_recovered_worker_is_asked_and_says_default_if_it_lost_its_weights() -> None:
    async with pool("7", version_path="/get_model_info", ask_interval_s=0.01) as (router, workers):
        quarantine(router, workers[0])
        workers[0].engine.weight_version = "default"
        restore(router, workers[0])
        waiting = asyncio.create_task(generate(router))
        await workers[0].wait_for_health_requests(3)
        assert len(router.application.holds) == 1
        workers[0].engine.weight_version = "6"
        answer = await waiting
        assert (answer.status, answer.get("x-router-weight-version")) == (200, "6")


async def test_a_worker_registered_again_without_a_version_must_say_it() -> None:
    async with pool("7") as (router, workers):
        await call(router, "POST", f"/add_worker?url={workers[0].url}")
        waiting = asyncio.create_task(generate(router))
        await held(router, 1)
        await call(router, "POST", "/workers", {"url": workers[0].url, "weight_version": "3"})
        assert (await waiting).get("x-router-weight-version") == "3"


@pytest.mark.parametrize("enabled", [("health", "weight_version"), ("weight_version", "health")])
async def test_a_restarted_worker_must_say_its_version_also_while_health_watches_it(enabled: tuple[str, str]) -> None:
    async with (
        scripted(1) as (worker,),
        running_router([worker.url], enabled=[*enabled, "least_inflight"], plugins={"weight_version": QUIET}) as router,
    ):
        await until(lambda: known(router, worker).is_ready)
        await state(router, worker, "7")
        assert (await generate(router, 7)).status == 200
        await call(router, "POST", f"/add_worker?url={worker.url}")
        await until(lambda: known(router, worker).is_ready)
        waiting = asyncio.create_task(generate(router))
        await held(router, 1)
        await state(router, worker, "6")
        assert (await waiting).get("x-router-weight-version") == "6"


async def test_a_worker_without_a_known_version_comes_back_as_before() -> None:
    async with pool("default") as (router, workers):
        quarantine(router, workers[0])
        restore(router, workers[0])
        assert (await generate(router)).status == 200
        await call(router, "POST", f"/add_worker?url={workers[0].url}")
        assert (await generate(router)).status == 200


async def test_a_setting_trusts_workers_that_come_back() -> None:
    async with pool("7", confirm_recovered=False) as (router, workers):
        quarantine(router, workers[0])
        restore(router, workers[0])
        assert (await generate(router, 7)).status == 200


async def test_other_workers_serve_while_one_is_not_confirmed() -> None:
    async with pool("7", "7") as (router, workers):
        quarantine(router, workers[0])
        restore(router, workers[0])
        answers = [await generate(router, 7) for _ in range(4)]
        assert {answer.get("x-router-worker") for answer in answers} == {workers[1].url}
