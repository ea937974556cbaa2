"""Retries over real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router_core import Exchange, Router, hookimpl
from router_core.testing import Faults, RawAnswer, RawClient, ScriptedWorker, build_request, exchange_once
from router_core.testing.router import RunningRouter, running_router

ASK = {"text": "hi"}


@asynccontextmanager
async def router_before(*workers: ScriptedWorker, **retry: Any) -> AsyncIterator[RunningRouter]:
    """Workers are asked in their order while they are idle: ties go to the one that was picked longest ago."""
    async with running_router(
        [worker.url for worker in workers], enabled=["retry", "round_robin"], plugins={"retry": retry}
    ) as router:
        yield router


@asynccontextmanager
async def scripted(count: int) -> AsyncIterator[list[ScriptedWorker]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(ScriptedWorker()) for _ in range(count)]


def counts(*workers: ScriptedWorker) -> list[int]:
    return [len(worker.requests) for worker in workers]


async def test_a_refused_connection_is_tried_elsewhere() -> None:
    async with scripted(2) as (first, second), router_before(first, second) as router:
        first.refuse()
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.get("x-router-worker")) == (200, second.url)
        assert answer.get("x-router-attempts") == "2"
        assert counts(first, second) == [0, 1]


async def test_an_answer_at_the_first_try_says_one_attempt() -> None:
    async with scripted(1) as (worker,), router_before(worker) as router:
        assert (await exchange_once(router.port, json=ASK)).get("x-router-attempts") == "1"


async def test_a_long_streamed_body_arrives_whole_at_the_second_worker() -> None:
    body = json.dumps({"text": "x" * 3_000_000}).encode()
    async with scripted(2) as (first, second), router_before(first, second) as router:
        first.refuse()
        answer = await exchange_once(router.port, body=body)
        assert answer.status == 200
        assert second.requests[0].body == body


async def test_without_another_worker_the_first_failure_is_told() -> None:
    async with scripted(1) as (worker,), router_before(worker) as router:
        worker.refuse()
        answer = await exchange_once(router.port, json=ASK)
        error = answer.json()["error"]
        assert (answer.status, error["code"], error["request_sent"]) == (502, "worker_unreachable", False)
        assert (error["tried"], "suspect" in error) == ([worker.url], False)


async def test_at_most_max_attempts_workers_are_tried_and_none_twice() -> None:
    async with scripted(4) as workers, router_before(*workers, max_attempts=3) as router:
        for worker in workers:
            worker.refuse()
        answer = await exchange_once(router.port, json=ASK)
        tried = answer.json()["error"]["tried"]
        assert (answer.status, len(tried), len(set(tried))) == (502, 3, 3)
        assert answer.get("x-router-attempts") == "3"


async def test_one_attempt_is_all_with_max_attempts_1() -> None:
    async with scripted(2) as (first, second), router_before(first, second, max_attempts=1) as router:
        first.refuse()
        assert (await exchange_once(router.port, json=ASK)).status == 502
        assert counts(second) == [0]


async def test_a_request_whose_worker_was_lost_is_suspect_and_goes_nowhere_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scripted(2) as (first, second), router_before(first, second) as router:
        first.fault(Faults.close_before_answer(reset=True))
        with caplog.at_level(logging.WARNING, "router_retry.plugin"):
            answer = await exchange_once(router.port, json=ASK)
        error = answer.json()["error"]
        assert (answer.status, answer.get("x-router-error")) == (502, "worker_lost")
        assert (error["suspect"], error["request_sent"], error["tried"]) == (True, True, [first.url])
        assert counts(first, second) == [1, 0]
        assert len([record for record in caplog.records if "suspect" in record.getMessage()]) == 1


async def test_the_setting_gives_a_suspect_request_one_more_try_and_no_second() -> None:
    async with scripted(3) as workers, router_before(*workers, retry_suspects=True) as router:
        workers[0].fault(Faults.close_before_answer())
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.get("x-router-attempts")) == (200, "2")
        for worker in workers:
            worker.fault(Faults.close_before_answer())
        error = (await exchange_once(router.port, json=ASK)).json()["error"]
        assert (error["code"], len(error["tried"])) == ("worker_lost", 2)


async def test_a_suspect_body_too_long_to_keep_is_sent_once() -> None:
    async with (
        scripted(2) as (first, second),
        router_before(first, second, retry_suspects=True, max_body_bytes=1000) as router,
    ):
        first.fault(Faults.close_before_answer())
        answer = await exchange_once(router.port, body=json.dumps({"text": "x" * 300_000}).encode())
        assert (answer.status, answer.json()["error"]["suspect"]) == (502, True)
        assert counts(second) == [0]


async def test_a_long_body_within_the_bound_is_sent_again_whole() -> None:
    body = json.dumps({"text": "x" * 300_000}).encode()
    async with scripted(2) as (first, second), router_before(first, second, retry_suspects=True) as router:
        first.fault(Faults.close_before_answer())
        assert (await exchange_once(router.port, body=body)).status == 200
        assert second.requests[0].body == body


async def test_what_is_no_http_is_not_tried_again() -> None:
    async with scripted(2) as (first, second), router_before(first, second, retry_suspects=True) as router:
        first.fault(Faults.garbage())
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.json()["error"]["code"]) == (502, "worker_protocol_error")
        assert counts(second) == [0]


async def test_an_answer_that_breaks_in_the_middle_is_not_tried_again() -> None:
    async with scripted(2) as (first, second), router_before(first, second, retry_suspects=True) as router:
        first.fault(Faults.close_amid(after_bytes=10))
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.clean) == (200, False)
        assert counts(second) == [0]


async def test_a_status_is_passed_on_unless_it_is_to_be_retried() -> None:
    async with scripted(2) as (first, second):
        first.fault(Faults.status(503), times=None)
        async with router_before(first, second) as router:
            answer = await exchange_once(router.port, json=ASK)
            assert (answer.status, answer.get("x-router-error")) == (503, None)
        async with router_before(first, second, retry_statuses=[503]) as router:
            answer = await exchange_once(router.port, json=ASK)
            assert (answer.status, answer.get("x-router-attempts")) == (200, "2")


async def test_an_answer_to_be_retried_is_passed_on_where_nobody_else_is() -> None:
    async with scripted(1) as (worker,), router_before(worker, retry_statuses=[429]) as router:
        worker.fault(Faults.status(429, {"Retry-After": "7"}))
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.get("retry-after")) == (429, "7")


async def test_a_dropped_answer_releases_its_worker() -> None:
    async with scripted(2) as (first, second), router_before(first, second, retry_statuses=[500]) as router:
        first.fault(Faults.status(500, body=b"x" * 3_000_000))
        second.hold()
        asking = asyncio.create_task(exchange_once(router.port, json=ASK))
        await second.wait_for_requests(1)
        assert [worker.inflight for worker in router.application.workers] == [0, 1]
        second.release()
        assert (await asking).status == 200


async def test_other_ranks_of_a_server_that_refuses_are_not_tried() -> None:
    async with scripted(2) as (first, second):
        urls = [f"{first.url}@0", f"{first.url}@1", second.url]
        async with running_router(urls, enabled=["retry", "round_robin"]) as router:
            first.refuse()
            answer = await exchange_once(router.port, json=ASK)
            assert (answer.status, answer.get("x-router-attempts")) == (200, "2")


async def test_a_client_that_leaves_is_not_retried_for() -> None:
    class Ended:
        @hookimpl
        def response_end(self, exchange: Exchange) -> None:
            ended.set()

    ended = asyncio.Event()
    async with (
        scripted(2) as (first, second),
        running_router([first.url, second.url], enabled=["retry", "round_robin"], classes=[Ended]) as router,
    ):
        first.hold()
        async with RawClient(router.port) as client:
            await client.send(build_request("POST", "/generate", (), json=ASK, host="h"))
            await first.wait_for_requests(1)
        await ended.wait()
        assert counts(second) == [0]
        first.release()


async def test_a_profile_may_change_it() -> None:
    async with (
        scripted(2) as (first, second),
        running_router(
            [first.url, second.url],
            enabled=["retry", "round_robin"],
            profiles={"careful": {"plugins": {"retry": {"max_attempts": 1}}}},
        ) as router,
    ):
        first.refuse()
        assert (await exchange_once(router.port, json=ASK, headers={"x-router-profile": "careful"})).status == 502


async def test_retries_and_suspects_are_counted() -> None:
    class Page:
        router: Router

        @hookimpl
        async def startup(self, router: Router) -> None:
            type(self).router = router

    async with scripted(2) as (first, second), router_before(first, second) as router:
        first.refuse()
        await exchange_once(router.port, json=ASK)
        second.fault(Faults.close_before_answer())
        while (await exchange_once(router.port, json=ASK)).status == 200:
            pass
        page = router.application.outside.metrics()
        assert 'router_retry_retries_total{reason="unreachable"}' in page
        assert "router_retry_suspects_total 1" in page


async def test_a_worker_that_dies_under_load_loses_only_what_was_sent_to_it() -> None:
    """Everything that the dead worker had not been given is answered by the other one."""
    async with scripted(2) as (first, second), router_before(first, second) as router:
        first.hold()

        async def ask(at: int) -> RawAnswer:
            return await exchange_once(router.port, json={"text": str(at)})

        asking = [asyncio.create_task(ask(at)) for at in range(100)]
        await first.wait_for_requests(20)
        lost = len(first.requests)
        await first.stop(reset=True)
        lost = len(first.requests)
        answers = await asyncio.gather(*asking)
        assert sorted({answer.status for answer in answers}) == [200, 502]
        errors = [answer.json()["error"] for answer in answers if answer.status == 502]
        assert len(errors) <= lost
        assert all(error["suspect"] and error["tried"][-1] == first.url for error in errors)
        assert [worker.inflight for worker in router.application.workers] == [0, 0]


async def test_a_process_killed_under_load_costs_only_what_it_was_answering(tmp_path: Path) -> None:
    """Two engines in processes of their own; one gets SIGKILL, and clients that ask again are answered."""

    async def start(name: str) -> tuple[asyncio.subprocess.Process, str]:
        ready = tmp_path / f"{name}.json"
        command = [sys.executable, "-m", "router_core.reference_engine", "--ready-file", str(ready)]
        process = await asyncio.create_subprocess_exec(
            *command, "--step-delay-s", "0.01", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        assert process.stdout is not None
        await process.stdout.readline()
        return process, str(json.loads(ready.read_text())["url"])

    body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}}
    (victim, victim_url), (other, other_url) = await asyncio.gather(start("victim"), start("other"))
    try:
        async with running_router(
            [victim_url, other_url], enabled=["retry", "least_inflight"], plugins={"retry": {}}
        ) as router:
            failures = 0

            async def roll_out() -> None:
                nonlocal failures
                for _ in range(6):
                    while (answer := await exchange_once(router.port, json=body)).status != 200 or not answer.clean:
                        failures += 1
                        assert answer.status in (200, 502)

            rolling = asyncio.gather(*(roll_out() for _ in range(16)))
            workers = list(router.application.workers)
            while workers[0].inflight < 4:  # noqa: ASYNC110 - there is no event for a count
                await asyncio.sleep(0.005)
            victim.send_signal(signal.SIGKILL)
            await victim.wait()
            await rolling
            assert failures <= 16  # at most what was in flight at that moment
            assert [worker.inflight for worker in workers] == [0, 0]
    finally:
        for process in (victim, other):
            if process.returncode is None:
                process.kill()
                await process.wait()
