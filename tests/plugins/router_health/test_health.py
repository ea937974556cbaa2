"""Health over real sockets: who is out, why, and who comes back."""

from __future__ import annotations

import asyncio
import json

import pytest

from router_core import WorkerFault, WorkerState, hookimpl
from router_core.testing import Faults, ScriptedWorker, exchange_once, reply, send_json
from router_core.testing.router import running_router

QUICK = {"health": {"interval_s": 0.05, "timeout_s": 0.3, "first_timeout_s": 0.3, "max_interval_s": 0.2}}
READY, STARTING, OUT = WorkerState.READY, WorkerState.STARTING, WorkerState.QUARANTINED


def quick(**settings):
    return {"health": {**QUICK["health"], **settings}}


async def generate(router, **more):
    return await exchange_once(router.port, json={"text": "hi", **more})


async def described(router):
    told = (await exchange_once(router.port, "GET", "/workers")).json()["workers"]
    return {worker["url"]: worker for worker in told}


# ----------------------------------------------------------------------------------------------------------- starting
async def test_a_request_right_after_the_registration_of_live_workers_is_served(scripted_workers):
    workers = await scripted_workers(2)
    async with running_router(plugins=QUICK) as router:
        assert (await generate(router)).status == 503
        for worker in workers:
            await exchange_once(router.port, "POST", "/workers", json={"url": worker.url})
        answers = await asyncio.gather(*(generate(router) for _ in range(20)))
        assert [answer.status for answer in answers] == [200] * 20


async def test_a_worker_that_nobody_serves_yet_is_starting_and_gets_no_request(changes):
    async with ScriptedWorker() as live, ScriptedWorker() as late:
        await late.stop()
        async with running_router([live.url, late.url], plugins=QUICK, classes=[changes.plugin]) as router:
            await changes.wait_for(late.url, STARTING)
            told = (await described(router))[late.url]
            assert told["status"] == "starting"
            assert told["is_healthy"] is False
            assert "refused" in told["reason"].lower() or "connect" in told["reason"].lower()
            assert [(await generate(router)).status for _ in range(6)] == [200] * 6
            await late.start()
            await changes.wait_for(late.url, READY)
            assert (await described(router))[late.url]["reason"] is None
            assert [(await generate(router)).status for _ in range(6)] == [200] * 6
            assert late.requests


async def test_a_worker_that_answers_503_before_its_first_success_is_starting(changes, scripted_worker):
    scripted_worker.health.status = 503
    async with running_router([scripted_worker.url], plugins=QUICK, classes=[changes.plugin]) as router:
        await changes.wait_for(scripted_worker.url, STARTING)
        await scripted_worker.wait_for_health_requests(6)
        refused = await generate(router)
        assert refused.status == 503
        assert refused.json()["error"]["workers"] == {scripted_worker.url: "starting: /health answered 503"}
        assert refused.values("retry-after") == ["1"]
        scripted_worker.health.status = 200
        await changes.wait_for(scripted_worker.url, READY)
        assert (await generate(router)).status == 200
    assert OUT not in [state for _, state in changes.seen]


async def test_a_worker_that_is_starting_for_long_is_named_once_with_the_reason(caplog, changes, scripted_worker):
    scripted_worker.health.status = 503
    plugins = quick(slow_start_s=0.001)
    async with running_router([scripted_worker.url], plugins=plugins, classes=[changes.plugin]) as router:
        await changes.wait_for(scripted_worker.url, STARTING)
        await scripted_worker.wait_for_health_requests(6)
        assert (await described(router))[scripted_worker.url]["status"] == "starting"
    told = [record.getMessage() for record in caplog.records if "still starting" in record.getMessage()]
    assert told == [f"worker {scripted_worker.url} is still starting after 0.001 s: /health answered 503"]


async def test_a_worker_that_is_starting_for_too_long_has_failed_and_still_comes_up(changes):
    async with ScriptedWorker() as worker:
        await worker.stop()
        plugins = quick(starting_timeout_s=0.2)
        async with running_router([worker.url], plugins=plugins, classes=[changes.plugin]) as router:
            await changes.wait_for(worker.url, OUT)
            assert (await described(router))[worker.url]["reason"].startswith("not up after 0.2 s: ")
            await worker.start()
            await changes.wait_for(worker.url, READY)
            assert (await generate(router)).status == 200


# ------------------------------------------------------------------------------------------------------- out and back
async def test_a_worker_that_died_is_out_with_a_reason_and_comes_back_by_itself(changes, scripted_worker):
    async with running_router([scripted_worker.url], plugins=QUICK, classes=[changes.plugin]) as router:
        assert (await generate(router)).status == 200
        await scripted_worker.wait_for_health_requests(1)
        await scripted_worker.stop()
        await changes.wait_for(scripted_worker.url, OUT)
        refused = await generate(router)
        assert refused.status == 503
        reason = refused.json()["error"]["workers"][scripted_worker.url]
        assert reason.startswith("quarantined: ")
        assert (await described(router))[scripted_worker.url]["reason"] in reason
        await scripted_worker.start()
        await changes.wait_for(scripted_worker.url, READY)
        assert (await generate(router)).status == 200


async def test_a_refused_request_puts_a_worker_out_without_waiting_for_a_probe(changes, scripted_workers):
    first, second = await scripted_workers(2)
    plugins = quick(interval_s=3600)
    async with running_router([first.url, second.url], plugins=plugins, classes=[changes.plugin]) as router:
        for worker in (first, second):
            await worker.wait_for_health_requests(1)
        await asyncio.gather(generate(router), generate(router))
        await second.stop()
        statuses = [(await generate(router)).status for _ in range(10)]
        assert sorted(statuses, reverse=True)[:1] == [502]
        assert statuses.count(502) == 1
        assert changes.workers[second.url].state is OUT


async def test_what_an_attempt_showed_holds_for_the_next_one_of_the_same_exchange(changes, scripted_workers):
    first, second = await scripted_workers(2)
    states = []

    class Again:
        @hookimpl
        async def around_upstream(self, exchange, call_next):
            try:
                return await call_next(exchange)
            except WorkerFault:
                answer = await call_next(exchange)
                states.append(exchange.attempts[0].worker.state)
                return answer

    plugins = quick(interval_s=3600)
    async with running_router([first.url, second.url], plugins=plugins, classes=[changes.plugin, Again]) as router:
        for worker in (first, second):
            await worker.wait_for_health_requests(1)
        await first.stop()
        answers = [await generate(router) for _ in range(4)]
        assert [answer.status for answer in answers] == [200] * 4
        assert states == [OUT]
        assert len(second.requests) == 4


async def test_registering_again_revives_a_worker_and_asks_it_at_once(changes, scripted_worker):
    plugins = quick(interval_s=0.05, max_interval_s=3600)
    async with running_router([scripted_worker.url], plugins=plugins, classes=[changes.plugin]) as router:
        await scripted_worker.wait_for_health_requests(1)
        await scripted_worker.stop()
        await changes.wait_for(scripted_worker.url, OUT)
        await scripted_worker.start()
        seen = len(scripted_worker.health_requests)
        await exchange_once(router.port, "POST", f"/add_worker?url={scripted_worker.url}")
        assert (await generate(router)).status == 200
        await scripted_worker.wait_for_health_requests(seen + 1)


async def test_a_worker_that_returns_on_another_port_leaves_the_old_one_out(changes, scripted_workers):
    old, new = await scripted_workers(2)
    async with running_router([old.url], plugins=QUICK, classes=[changes.plugin]) as router:
        assert (await generate(router)).status == 200
        await old.stop()
        await changes.wait_for(old.url, OUT)
        accepted = len(old.requests)
        await exchange_once(router.port, "POST", "/workers", json={"url": new.url})
        assert [(await generate(router)).status for _ in range(10)] == [200] * 10
        assert len(old.requests) == accepted
        assert len(new.requests) == 10


async def test_a_removed_worker_is_probed_no_more(changes, scripted_worker):
    async with running_router([scripted_worker.url], plugins=QUICK, classes=[changes.plugin]) as router:
        await scripted_worker.wait_for_health_requests(1)
        await exchange_once(router.port, "POST", f"/remove_worker?url={scripted_worker.url}")
        await scripted_worker.wait_until(lambda: all(c.peer_has_left for c in scripted_worker.connections))
        seen = len(scripted_worker.health_requests)
        names = [task.get_name() for task in asyncio.all_tasks() if not task.cancelling()]
        assert not [name for name in names if name.startswith("health probes")]
        await generate(router)
        assert len(scripted_worker.health_requests) == seen


# ------------------------------------------------------------------------------------------- what is no fault, and is
@pytest.mark.parametrize("status", [400, 404, 409, 422, 429, 501, 503])
async def test_an_answer_that_is_no_fault_puts_nobody_out(status, changes, scripted_workers):
    workers = await scripted_workers(2)
    for worker in workers:
        worker.handler = reply(b"{}", status)
    urls = [worker.url for worker in workers]
    async with running_router(urls, plugins=QUICK, classes=[changes.plugin]) as router:
        assert [(await generate(router)).status for _ in range(12)] == [status] * 12
        assert [worker["status"] for worker in (await described(router)).values()] == ["ready", "ready"]


async def test_a_worker_that_fails_every_request_is_out_although_its_probes_are_answered(changes, scripted_workers):
    good, bad = await scripted_workers(2)
    bad.handler = reply(b"{}", 500)
    plugins = quick(interval_s=0.2)
    async with running_router([good.url, bad.url], plugins=plugins, classes=[changes.plugin]) as router:
        for _ in range(8):
            await generate(router)
        worker = await changes.wait_for(bad.url, OUT)
        assert worker.reason == "3 failures, the last: a request was answered 500"
        await changes.wait_for(bad.url, READY)
        while worker.state is READY:  # the trial is one request
            await generate(router)
        assert len(bad.requests) == 4
        bad.handler = bad.engine.answer
        await changes.wait_for(bad.url, READY)
        while len(bad.requests) < 10:
            assert (await generate(router)).status == 200


async def test_answers_that_break_off_are_failures(changes, scripted_workers):
    good, bad = await scripted_workers(2)
    bad.fault(Faults.close_amid(), times=None)
    plugins = quick(interval_s=3600)
    async with running_router([good.url, bad.url], plugins=plugins, classes=[changes.plugin]) as router:
        for _ in range(6):
            await generate(router)
        worker = await changes.wait_for(bad.url, OUT)
        assert worker.reason.startswith("3 failures, the last: ")


async def test_a_client_that_leaves_is_no_fault_of_the_worker(changes, scripted_workers):
    workers = await scripted_workers(2)
    for worker in workers:
        worker.hold()
    urls = [worker.url for worker in workers]
    async with running_router(urls, plugins=QUICK, classes=[changes.plugin]) as router:
        for round_ in range(1, 4):
            leaving = [asyncio.create_task(generate(router)) for _ in workers]
            for worker in workers:
                await worker.wait_for_requests(round_)
            for request in leaving:
                request.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
            for worker in workers:
                await worker.wait_until_idle()
        for worker in workers:
            worker.release()
        assert (await generate(router)).status == 200
        assert [worker["status"] for worker in (await described(router)).values()] == ["ready", "ready"]


# ------------------------------------------------------------------------------------------------------------- probes
async def test_a_worker_whose_probes_take_too_long_stays_in_while_it_serves(changes, scripted_workers):
    busy, idle = await scripted_workers(2)
    plugins = quick(timeout_s=0.1, first_timeout_s=5.0, interval_s=0.02)
    async with running_router([busy.url, idle.url], plugins=plugins, classes=[changes.plugin]) as router:
        for worker in (busy, idle):
            await worker.wait_for_health_requests(1)
        busy.health.hangs = True
        seen = len(busy.health_requests)
        while len(busy.health_requests) < seen + 6:
            assert (await generate(router)).status == 200
        assert [state for url, state in changes.seen if url == busy.url] == [READY]


async def test_a_wedged_worker_is_out_and_its_hung_probe_delays_no_other(changes, scripted_workers):
    wedged, live = await scripted_workers(2)
    plugins = quick(timeout_s=0.5)
    async with running_router([wedged.url, live.url], plugins=plugins, classes=[changes.plugin]) as router:
        await wedged.wait_for_health_requests(1)
        wedged.health.hangs = True
        before = len(live.health_requests)
        worker = await changes.wait_for(wedged.url, OUT)
        assert worker.reason in (
            "3 failures, the last: /health: no answer within 0.5 s",
            "3 failures, the last: /ready: no answer within 0.5 s",
        )
        assert len(live.health_requests) - before >= 10
        assert [(await generate(router)).status for _ in range(4)] == [200] * 4
        wedged.health.hangs = False
        await changes.wait_for(wedged.url, READY)


async def test_a_worker_that_fails_two_probes_of_three_is_never_out(changes, scripted_workers):
    flapping, steady = await scripted_workers(2)
    answers = 0

    async def flap(request, connection):
        nonlocal answers
        if request.path != "/health":
            return await flapping.engine.answer(request, connection)
        answers += 1
        return await send_json(connection, {}, 200 if answers % 3 == 0 else 500)

    flapping.health.paths = set()
    flapping.handler = flap
    plugins = quick(interval_s=0.01)
    async with running_router([flapping.url, steady.url], plugins=plugins, classes=[changes.plugin]) as router:
        while answers < 30:
            assert (await generate(router)).status == 200
        assert {state for _, state in changes.seen} == {READY}


async def test_a_slow_health_path_gives_way_to_ready(changes, scripted_worker):
    scripted_worker.health.delay_s = 1.0
    plugins = quick(first_timeout_s=10.0, timeout_s=10.0, interval_s=0.01)
    async with running_router([scripted_worker.url], plugins=plugins, classes=[changes.plugin]):
        await scripted_worker.wait_for_health_requests(1)
        scripted_worker.health.delay_s = 0.0
        await scripted_worker.wait_for_health_requests(4)
    assert [request.path for request in scripted_worker.health_requests[:4]] == ["/health"] + ["/ready"] * 3


async def test_a_given_path_is_asked_and_no_other(scripted_worker):
    scripted_worker.health.paths = {"/ping"}
    async with running_router([scripted_worker.url], plugins=quick(path="/ping")):
        await scripted_worker.wait_for_health_requests(3)
    assert {request.path for request in scripted_worker.health_requests} == {"/ping"}


# --------------------------------------------------------------------------------------------------------- panic rule
async def test_the_last_worker_stays_in_whatever_its_probes_say(changes, scripted_worker):
    async with running_router([scripted_worker.url], plugins=QUICK, classes=[changes.plugin]) as router:
        await scripted_worker.wait_for_health_requests(1)
        scripted_worker.health.status = 500
        await scripted_worker.wait_for_health_requests(10)
        assert (await generate(router)).status == 200
        assert changes.workers[scripted_worker.url].state is READY


async def test_at_most_half_are_out_unless_they_refuse_connections(changes, scripted_workers):
    workers = await scripted_workers(4)
    urls = [worker.url for worker in workers]
    async with running_router(urls, plugins=QUICK, classes=[changes.plugin]) as router:
        for worker in workers:
            await worker.wait_for_health_requests(1)
        for worker in workers:
            worker.health.status = 500
        seen = {worker: len(worker.health_requests) for worker in workers}
        for worker in workers:
            await worker.wait_for_health_requests(seen[worker] + 6)
        states = [changes.workers[url].state for url in urls]
        assert sorted(states) == [OUT, OUT, READY, READY]
        for worker in workers:
            await worker.stop()
        await changes.wait(lambda: all(changes.workers[url].state is OUT for url in urls))
        assert (await generate(router)).status == 503


# ---------------------------------------------------------------------------------------------------------- half-open
async def test_a_worker_that_came_back_gets_few_requests_until_it_has_served_one(changes, scripted_workers):
    back, other = await scripted_workers(2)
    plugins = quick(trial_requests=3)
    async with running_router([back.url, other.url], plugins=plugins, classes=[changes.plugin]) as router:
        await back.wait_for_health_requests(1)
        await back.stop()
        await changes.wait_for(back.url, OUT)
        await back.start()
        await changes.wait_for(back.url, READY)
        before = len(back.requests)
        back.hold()
        other.hold()
        running = [asyncio.create_task(generate(router)) for _ in range(20)]
        await other.wait_for_requests(17)
        assert len(back.requests) - before == 3
        back.release()
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        more = [asyncio.create_task(generate(router)) for _ in range(10)]
        await back.wait_for_requests(before + 13)
        other.release()
        assert {answer.status for answer in await asyncio.gather(*running, *more)} == {200}


async def test_where_only_workers_on_trial_are_left_nobody_is_refused(changes, scripted_worker):
    async with running_router(
        [scripted_worker.url], plugins=quick(trial_requests=1), classes=[changes.plugin]
    ) as router:
        await scripted_worker.wait_for_health_requests(1)
        await scripted_worker.stop()
        await changes.wait_for(scripted_worker.url, OUT)
        await scripted_worker.start()
        await changes.wait_for(scripted_worker.url, READY)
        answers = await asyncio.gather(*(generate(router) for _ in range(10)))
        assert [answer.status for answer in answers] == [200] * 10


async def test_another_plugin_decides_when_a_returned_worker_is_eligible(changes, scripted_workers):
    first, second = await scripted_workers(2)
    unconfirmed = set()

    class Confirm:
        @hookimpl
        def worker_changed(self, worker, old, new):
            if old is OUT and new is READY:
                unconfirmed.add(worker)

        @hookimpl
        def filter_workers(self, workers):
            return [worker for worker in workers if worker not in unconfirmed]

    async with running_router([first.url, second.url], plugins=QUICK, classes=[changes.plugin, Confirm]) as router:
        await first.wait_for_health_requests(1)
        await first.stop()
        await changes.wait_for(first.url, OUT)
        await first.start()
        worker = await changes.wait_for(first.url, READY)
        assert [(await generate(router)).status for _ in range(4)] == [200] * 4
        assert first.requests == []
        unconfirmed.discard(worker)
        while not first.requests:
            assert (await generate(router)).status == 200


# ------------------------------------------------------------------------------------------------------- bad settings
@pytest.mark.parametrize(
    ("setting", "value"), [("interval_s", 0), ("max_failures", 0), ("max_out_share", 1.5), ("path", "health")]
)
async def test_a_bad_setting_is_an_error_at_start_that_names_it(setting, value):
    with pytest.raises(Exception, match=f"plugins.health.{setting}"):
        async with running_router(plugins={"health": {setting: value}}):
            pass


async def test_metrics_count_probes_and_ejections(changes, scripted_worker):
    async with running_router([scripted_worker.url], plugins=QUICK, classes=[changes.plugin]) as router:
        await scripted_worker.wait_for_health_requests(1)
        await scripted_worker.stop()
        await changes.wait_for(scripted_worker.url, OUT)
        lines = router.application.outside.metrics().splitlines()
        assert "router_health_ejections_total 1" in lines
        assert json.loads(next(line for line in lines if line.startswith("router_health_probes_total")).split()[1]) > 1


async def test_a_coordinator_that_states_the_whole_list_again_does_not_make_a_starting_worker_ready(changes):
    async with ScriptedWorker() as live, ScriptedWorker() as late:
        await late.stop()
        async with running_router([live.url, late.url], plugins=QUICK, classes=[changes.plugin]) as router:
            worker = await changes.wait_for(late.url, STARTING)
            told = (await exchange_once(router.port, "PUT", "/workers", json=[live.url, late.url])).json()
            assert told == {"added": [], "kept": [live.url, late.url], "drained": []}
            assert worker.state is STARTING
