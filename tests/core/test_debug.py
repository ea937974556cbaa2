import json
import re

import pytest

from router_core import Answer, Exchange, Headers, Reject, Request, Worker, hookimpl
from router_core.debug import MAX_CHARACTERS, describe, is_wanted, timing
from router_core.testing import Faults, exchange_once
from router_core.testing.pytest_plugin import scripted_worker, scripted_workers  # noqa: F401  # fixtures
from router_core.testing.router import running_router
from router_core.types import Attempt, Decision

DEBUG = {"x-router-debug": "1"}


async def ask(router, **headers):
    return await exchange_once(router.port, headers={**DEBUG, **headers}, json={"text": "hi"})


async def test_an_answer_shows_its_decision_and_its_times(scripted_workers):  # noqa: F811
    workers = await scripted_workers(3)

    class NotTheThird:
        @hookimpl
        def filter_workers(self, exchange, workers):
            return list(workers)[:2]

    async with running_router([worker.url for worker in workers], classes=[NotTheThird]) as router:
        answer = await ask(router)
        told = json.loads(*answer.values("x-router-debug"))
        assert told["worker"] in told["candidates"]
        assert told["candidates"] == {workers[0].url: 1.0, workers[1].url: 1.0}
        assert told["out"] == {workers[2].url: "left out by plugin not_the_third"}
        assert told["attempts"] == [{"worker": told["worker"], "status": 200}]
        assert told["plugins"] == ["health", "least_inflight", "not_the_third"]
        (times,) = answer.values("server-timing")
        assert re.fullmatch(r'queue;dur=[\d.]+, attempt;desc="w-\w+";dur=[\d.]+, total;dur=[\d.]+', times)
    (request,) = [request for worker in workers for request in worker.requests]
    assert request.get("x-router-debug") is None


async def test_why_workers_are_out_is_shown_with_a_refusal(scripted_workers):  # noqa: F811
    out, starting = await scripted_workers(2)
    async with running_router([out.url, starting.url], enabled=[]) as router:
        table = router.application.workers
        first, second = table
        table.quarantine(first, first.generation, "3 failures")
        table.await_start(second, second.generation, "refused")
        answer = await ask(router)
        assert answer.status == 503
        told = json.loads(*answer.values("x-router-debug"))
        assert told["worker"] is None
        assert told["out"] == {out.url: "quarantined: 3 failures", starting.url: "starting: refused"}


async def test_an_answer_that_failed_shows_its_attempt_and_keeps_the_workers_own_timing(scripted_worker):  # noqa: F811
    async with running_router([scripted_worker.url], enabled=[]) as router:
        scripted_worker.fault(Faults.close_before_answer())
        told = json.loads(*(await ask(router)).values("x-router-debug"))
        assert told["attempts"][0]["status"] is None
        assert told["attempts"][0]["error"]
        scripted_worker.fault(Faults.headers({"Server-Timing": "engine;dur=3"}))
        assert (await ask(router)).values("server-timing")[0] == "engine;dur=3"


async def test_an_answer_without_a_worker_shows_that_too(scripted_worker):  # noqa: F811
    class Own:
        @hookimpl
        async def request_start(self, exchange):
            return Answer.json(200, {"mine": True})

    async with running_router([scripted_worker.url], enabled=[], classes=[Own]) as router:
        answer = await ask(router)
        assert answer.json() == {"mine": True}
        assert json.loads(*answer.values("x-router-debug"))["candidates"] == {}


@pytest.mark.parametrize(("value", "is_shown"), [("true", True), ("0", False), ("false", False), (None, False)])
async def test_it_is_shown_to_who_asks(value, is_shown, scripted_worker):  # noqa: F811
    headers = {} if value is None else {"x-router-debug": value}
    async with running_router([scripted_worker.url]) as router:
        answer = await exchange_once(router.port, headers=headers, json={"text": "hi"})
        assert bool(answer.values("x-router-debug")) is is_shown
        assert bool(answer.values("server-timing")) is is_shown


async def test_a_value_that_is_neither_yes_nor_no_is_400_naming_the_header(scripted_worker):  # noqa: F811
    async with running_router([scripted_worker.url]) as router:
        answer = await ask(router, **{"x-router-debug": "verbose"})
        assert answer.status == 400
        assert answer.json()["error"]["param"] == "x-router-debug"
    assert scripted_worker.requests == []


async def test_where_it_is_forbidden_the_header_means_nothing(scripted_worker):  # noqa: F811
    async with running_router([scripted_worker.url], router={"debug_header": False}) as router:
        answer = await ask(router, **{"x-router-debug": "verbose"})
        assert answer.status == 200
        assert answer.values("x-router-debug") == answer.values("server-timing") == []
    assert scripted_worker.requests[0].get("x-router-debug") is None


def test_it_is_wanted_or_not():
    assert [is_wanted(value) for value in ("1", "true", "0", "false", "", None)] == [True, True] + [False] * 4
    with pytest.raises(Reject):
        is_wanted("yes")


def exchange_with(count, reason="left out"):
    def worker(number):
        url = f"http://worker-{number}.example:8000"
        return Worker(id=f"w-{number}", base_id="b", url=url, key=url, base_url=url, dp_rank=None, generation=1)

    workers = [worker(number) for number in range(count)]
    exchange = Exchange("x-1", Request("POST", b"/generate", b"", Headers(), None), started_at=10.0)
    scores = {worker: 1 / (1 + number) for number, worker in enumerate(workers)}
    out = {f"http://out-{number}.example": reason for number in range(count)}
    exchange.decision = Decision(workers, scores, out, workers[0] if workers else None)
    return exchange, workers


@pytest.mark.parametrize("count", [0, 1, 3, 30, 4096])
@pytest.mark.parametrize("reason", ["short", "l\u00f6ng\r\n\u0000" * 2000])
def test_the_header_is_bounded_and_ascii_json_whatever_the_pool(count, reason):
    exchange, workers = exchange_with(count, reason)
    text = describe(exchange, ["plugin"] * 40)
    assert len(text) <= MAX_CHARACTERS
    assert text.isascii()
    assert text.isprintable()
    told = json.loads(text)
    assert len(told["candidates"]) + len(told["out"]) + told.get("not_shown", 0) == 2 * count
    if told["candidates"]:
        assert next(iter(told["candidates"])) == workers[0].url


def test_times_are_of_each_attempt_up_to_its_first_byte():
    exchange, (worker, other) = exchange_with(2)
    failed, served = Attempt(worker, exchange.request, 12.0), Attempt(other, exchange.request, 13.0)
    failed.ended_at, served.first_byte_at, served.ended_at = 12.5, 14.0, 20.0
    exchange.attempts = [failed, served]
    assert timing(exchange, 15.0) == (
        'queue;dur=2000.000, attempt;desc="w-0";dur=500.000, attempt;desc="w-1";dur=1000.000, total;dur=5000.000'
    )
