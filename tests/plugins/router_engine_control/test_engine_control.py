"""Control verbs and aborts over real sockets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import router_engine_control
from router_engine_control.plugin import EngineControl

from router_core import WorkerState, hookimpl
from router_core.reference_engine import running_engine
from router_core.testing import Faults, RawClient, ScriptedWorker, build_request, exchange_once, reply, reply_json
from router_core.testing.router import running_router

ENABLED = ("health", "least_inflight", "engine_control")


def running(workers, **more):
    return running_router([worker.url for worker in workers], enabled=ENABLED, **more)


def control(worker):
    """What came to a worker beside generations, as (method, target, body)."""
    told = [request for request in worker.requests if request.path not in ("/generate", "/v1/chat/completions")]
    return [(request.method, request.target.decode(), request.body) for request in told]


async def post(router, path, body=None, **more):
    return await exchange_once(router.port, "POST", path, json=body, **more)


class Ends:
    """Tells how exchanges ended: their ids by header, whether an abort was asked for; ``plugin`` goes to the router."""

    def __init__(self):
        self.seen = []
        self._arrived = asyncio.Event()
        ends = self

        class Recorder:
            @hookimpl
            def response_end(self, exchange):
                ends.seen.append(exchange)
                ends._arrived.set()

        self.plugin = Recorder

    async def wait(self, count):
        async with asyncio.timeout(10):
            while len(self.seen) < count:
                self._arrived.clear()
                await self._arrived.wait()


# -------------------------------------------------------------------------------------------------------- all workers
@pytest.mark.parametrize(
    "path",
    [
        "/flush_cache", "/pause_generation", "/continue_generation", "/sleep", "/wake_up", "/pause", "/resume",
        "/reset_prefix_cache", "/update_weights_from_disk", "/update_weights_from_tensor",
        "/update_weights_from_distributed", "/update_weight_version", "/start_profile", "/stop_profile",
        "/release_memory_occupation", "/resume_memory_occupation", "/v1/load_lora_adapter",
    ],
)  # fmt: skip
async def test_a_verb_goes_to_every_worker_as_it_came(path, scripted_workers):
    workers = await scripted_workers(3)
    for worker in workers:
        worker.handler = reply_json({"success": True})
    body = b'{ "mode":"abort", "odd": -1e-05}'
    async with running(workers) as router:
        answer = await exchange_once(
            router.port, "POST", f"{path}?level=1&x=%2F", {"Content-Type": "application/json; a=b", "X-Mine": "1"}, body
        )
        told = answer.json()
        assert answer.status == 200
        assert (told["total"], told["succeeded"], told["failed"]) == (3, 3, [])
        listed = (await exchange_once(router.port, "GET", "/workers")).json()["workers"]
        assert told["results"] == {
            worker["id"]: {"url": worker["url"], "status": 200, "body": {"success": True}} for worker in listed
        }
    for worker in workers:
        assert control(worker) == [("POST", f"{path}?level=1&x=%2F", body)]
        assert worker.requests[0].get("content-type") == "application/json; a=b"
        assert worker.requests[0].get("x-mine") == "1"


async def test_a_verb_may_be_a_get(scripted_workers):
    workers = await scripted_workers(2)
    for worker in workers:
        worker.handler = reply(b"Cache flushed.\n", content_type=None)
    async with running(workers) as router:
        answer = await exchange_once(router.port, "GET", "/flush_cache")
        assert answer.status == 200
        assert {result["body"] for result in answer.json()["results"].values()} == {"Cache flushed.\n"}
    assert [control(worker) for worker in workers] == [[("GET", "/flush_cache", b"")]] * 2


async def test_some_failures_are_207_and_named(scripted_workers):
    good, full, odd, dead = await scripted_workers(4)
    good.handler = reply_json({"success": True})
    full.handler = reply(b"Flush cache failed.\n", 400)
    odd.handler = reply_json({"success": False, "message": "no"})
    async with running((good, full, odd, dead)) as router:
        await dead.stop()
        answer = await post(router, "/flush_cache", {})
        told = answer.json()
        assert answer.status == 207
        assert (told["total"], told["succeeded"]) == (4, 1)
        failed = {entry["url"]: entry for entry in told["failed"]}
        assert set(failed) == {full.url, odd.url, dead.url}
        assert (failed[full.url]["status"], failed[full.url]["message"]) == (400, "Flush cache failed.\n")
        assert failed[odd.url]["status"] == 200
        assert failed[dead.url]["status"] == 0
        assert failed[dead.url]["message"]
        assert {entry["worker_id"] for entry in told["failed"]} < set(told["results"])


async def test_workers_that_are_out_or_leaving_are_asked_too(scripted_workers):
    workers = await scripted_workers(3)
    async with running_router([w.url for w in workers], enabled=["engine_control"]) as router:
        table = router.application.workers
        first, second, third = table
        table.quarantine(first, first.generation, "for a test")
        table.await_start(second, second.generation, "for a test")
        table.start_drain(third)
        assert (await post(router, "/pause_generation", {})).json()["succeeded"] == 3
        assert [worker.state for worker in table] == [
            WorkerState.QUARANTINED,
            WorkerState.STARTING,
            WorkerState.DRAINING,
        ]
    assert [len(control(worker)) for worker in workers] == [1, 1, 1]


async def test_a_worker_that_is_out_and_silent_keeps_the_others_answer_only_so_long(scripted_workers):
    workers = await scripted_workers(2)
    silent = workers[0]
    silent.fault(Faults.stall(), times=None)
    plugins = {"engine_control": {"out_timeout_s": 0.2}}
    async with running_router([w.url for w in workers], enabled=["engine_control"], plugins=plugins) as router:
        table = router.application.workers
        table.quarantine(table.get(silent.url), table.get(silent.url).generation, "for a test")
        told = (await post(router, "/flush_cache", {})).json()
        assert [entry["url"] for entry in told["failed"]] == [silent.url]
        assert told["failed"][0]["message"] == "no answer within 0.2 s"


async def test_without_workers_a_verb_reached_nobody():
    async with running(()) as router:
        answer = await post(router, "/flush_cache", {})
        assert (answer.status, answer.json()) == (200, {"results": {}, "failed": [], "total": 0, "succeeded": 0})


async def test_ranks_of_one_server_are_asked_once(scripted_worker):
    urls = [f"{scripted_worker.url}@{rank}" for rank in range(4)]
    async with running_router(urls, enabled=ENABLED) as router:
        told = (await post(router, "/update_weight_version", {"new_version": "3"})).json()
        assert (told["total"], told["succeeded"]) == (4, 4)
        assert {worker.weight_version for worker in router.application.workers} == {"3"}
    assert len(control(scripted_worker)) == 1


async def test_a_version_is_noted_where_the_verb_succeeded(scripted_workers):
    good, bad = workers = await scripted_workers(2)
    bad.handler = reply_json({"success": False}, 400)
    async with running(workers) as router:
        answer = await post(router, "/update_weights_from_disk", {"model_path": "m", "weight_version": "12"})
        assert answer.status == 207
        versions = {worker.url: worker.weight_version for worker in router.application.workers}
        assert versions == {good.url: "12", bad.url: None}


async def test_a_verb_that_empties_the_cache_is_told_where_it_succeeded(scripted_workers):
    good, bad = workers = await scripted_workers(2)
    bad.handler = reply(b"Flush cache failed.\n", 400)
    async with running(workers) as router:
        epochs = {worker.url: worker.cache_epoch for worker in router.application.workers}
        await post(router, "/flush_cache", {})
        await post(router, "/pause_generation", {})
        gained = {worker.url: worker.cache_epoch - epochs[worker.url] for worker in router.application.workers}
        assert gained == {good.url: 1, bad.url: 0}


async def test_a_verb_with_a_wrong_method_is_405_and_reaches_nobody(scripted_worker):
    async with running((scripted_worker,)) as router:
        assert (await exchange_once(router.port, "DELETE", "/flush_cache")).status == 405
        assert (await exchange_once(router.port, "GET", "/abort_request")).status == 405
    assert control(scripted_worker) == []


async def test_a_body_above_the_bound_is_413(scripted_worker):
    async with running((scripted_worker,), router={"max_body_bytes": 1000}) as router:
        answer = await exchange_once(router.port, "POST", "/update_weights_from_tensor", body=b"x" * 1001)
        assert answer.status == 413
        assert "router.max_body_bytes" in answer.json()["error"]["message"]
    assert control(scripted_worker) == []


async def test_chat_and_other_paths_below_v1_go_to_one_worker(scripted_workers):
    workers = await scripted_workers(2)
    async with running(workers) as router:
        answer = await post(router, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
        assert answer.status == 200
        assert (await exchange_once(router.port, "GET", "/v1/models/scripted")).status == 404
    assert sum(len(worker.requests) for worker in workers) == 2


async def test_switched_off_it_leaves_no_trace(scripted_worker):
    async with running_router([scripted_worker.url]) as router:
        answer = await post(router, "/flush_cache", {})
        assert answer.json() == {"success": True}
        assert (await exchange_once(router.port, "GET", "/engine_metrics")).status == 404


# --------------------------------------------------------------------------------------------------------- any worker
@pytest.mark.parametrize("path", ["/get_model_info", "/v1/models"])
async def test_a_question_is_answered_by_a_live_worker_although_another_is_down(path, scripted_workers):
    dead, live = workers = await scripted_workers(2)
    async with running(workers, plugins={"health": {"interval_s": 3600}}) as router:
        for worker in workers:
            await worker.wait_for_health_requests(1)
        await dead.stop()
        for _ in range(4):
            answer = await exchange_once(router.port, "GET", path)
            assert answer.status == 200
            assert answer.values("x-router-worker") == [live.url]
            assert answer.body == live.engine.describe(path)


async def test_a_question_is_passed_with_its_query_and_so_is_a_4xx(scripted_worker):
    scripted_worker.handler = reply_json({"detail": "Not Found"}, 404)
    async with running((scripted_worker,)) as router:
        answer = await exchange_once(router.port, "GET", "/server_info?config_format=json")
        assert (answer.status, answer.json()) == (404, {"detail": "Not Found"})
    assert control(scripted_worker) == [("GET", "/server_info?config_format=json", b"")]


async def test_a_question_that_every_worker_fails_gets_the_last_failure(scripted_workers):
    workers = await scripted_workers(2)
    for worker in workers:
        worker.handler = reply_json({"error": "loading"}, 503)
    async with running(workers) as router:
        answer = await exchange_once(router.port, "GET", "/model_info")
        assert (answer.status, answer.json()) == (503, {"error": "loading"})
    assert [len(worker.requests) for worker in workers] == [1, 1]


async def test_without_a_ready_worker_a_question_is_503_with_the_reasons(scripted_worker):
    async with running_router([scripted_worker.url], enabled=["engine_control"]) as router:
        (worker,) = router.application.workers
        router.application.workers.quarantine(worker, worker.generation, "for a test")
        answer = await exchange_once(router.port, "GET", "/v1/models")
        assert answer.status == 503
        assert answer.json()["error"]["workers"] == {worker.url: "quarantined: for a test"}


# ------------------------------------------------------------------------------------------------------------- aborts
async def test_an_abort_goes_to_the_worker_that_has_the_rid(scripted_workers):
    workers = await scripted_workers(3)
    for worker in workers:
        worker.hold()
    async with running(workers) as router:
        rids = [f"r-{number}" for number in range(3)]
        tasks = {rid: asyncio.create_task(post(router, "/generate", {"text": "hi", "rid": rid})) for rid in rids}
        for worker in workers:
            await worker.wait_for_requests(1)
        told = (await post(router, "/abort_request", {"rid": "r-1"})).json()
        assert (told["total"], told["succeeded"]) == (1, 1)
        answer = (await tasks["r-1"]).json()
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        (owner,) = [worker for worker in workers if worker.requests[0].json()["rid"] == "r-1"]
        assert control(owner) == [("POST", "/abort_request", b'{"rid":"r-1"}')]
        assert [control(worker) for worker in workers if worker is not owner] == [[], []]
        for worker in workers:
            worker.release()
        assert [(await tasks[rid]).json()["meta_info"]["finish_reason"]["type"] for rid in ("r-0", "r-2")] == [
            "stop", "stop",
        ]  # fmt: skip


async def test_an_abort_of_an_unknown_rid_and_of_all_goes_to_everybody(scripted_workers):
    workers = await scripted_workers(2)
    async with running(workers) as router:
        assert (await post(router, "/abort_request", {"rid": "nobody has it"})).json()["total"] == 2
        assert (await post(router, "/abort_request", {"abort_all": True})).json()["total"] == 2
        assert (await post(router, "/abort_requests", {})).json()["total"] == 2
    assert [len(control(worker)) for worker in workers] == [3, 3]


@pytest.mark.parametrize(
    ("body", "param"),
    [(b"{", None), (b"[]", None), (b"{}", "rid"), (b'{"rid": 3}', "rid"), (b'{"abort_all": 1}', "abort_all")],
)
async def test_a_malformed_abort_is_400_and_reaches_nobody(body, param, scripted_worker):
    async with running((scripted_worker,)) as router:
        answer = await exchange_once(router.port, "POST", "/abort_request", body=body)
        assert answer.status == 400
        assert answer.json()["error"].get("param") == param
    assert control(scripted_worker) == []


async def test_another_plugin_sees_that_an_abort_was_asked_for(scripted_worker):
    ends = Ends()
    scripted_worker.hold()
    async with running((scripted_worker,), classes=[ends.plugin]) as router:

        async def run(count, **body):
            task = asyncio.create_task(post(router, "/generate", {"text": "hi", **body}))
            await scripted_worker.wait_for_requests(count)
            return task

        by_rid = await run(1, rid="a")
        await post(router, "/abort_request", {"rid": "a"})
        await by_rid
        by_nobody = await run(3)
        scripted_worker.engine.abort(None)
        await by_nobody
        by_all = await run(4)
        await post(router, "/abort_request", {"abort_all": True})
        await by_all
        await ends.wait(3)
    assert [exchange.abort_was_asked for exchange in ends.seen] == [True, False, True]


async def test_a_request_that_waits_for_a_worker_is_ended_by_its_rid(scripted_worker):
    gate, waiting = asyncio.Event(), asyncio.Semaphore(0)

    class Hold:
        @hookimpl
        async def around_upstream(self, exchange, call_next):
            waiting.release()
            await gate.wait()
            return await call_next(exchange)

    async with running((scripted_worker,), classes=[Hold]) as router:
        named = asyncio.create_task(post(router, "/generate", {"text": "hi", "rid": "held"}))
        other = asyncio.create_task(post(router, "/generate", {"text": "hi", "rid": "other"}))
        await waiting.acquire()
        await waiting.acquire()
        told = (await post(router, "/abort_request", {"rid": "held"})).json()
        assert (told["total"], told["held"]) == (0, 1)
        answer = await named
        assert (answer.status, answer.json()["error"]["code"]) == (409, "aborted")
        await post(router, "/abort_request", {"abort_all": True})
        gate.set()
        assert (await other).status == 200
        told = (await post(router, "/abort_request", {"rid": "held"})).json()
        assert told["total"] == 1
        assert "held" not in told
    assert [request.json()["rid"] for request in scripted_worker.requests if request.path == "/generate"] == ["other"]


async def test_an_abort_by_the_beginning_of_rids_ends_those_that_wait(scripted_worker):
    gate, waiting = asyncio.Event(), asyncio.Semaphore(0)

    class Hold:
        @hookimpl
        async def around_upstream(self, exchange, call_next):
            waiting.release()
            await gate.wait()
            return await call_next(exchange)

    async with running((scripted_worker,), classes=[Hold]) as router:
        tasks = [
            asyncio.create_task(post(router, "/generate", {"text": "hi", "rid": rid})) for rid in ("g_0", "g_1", "h_0")
        ]
        for _ in tasks:
            await waiting.acquire()
        told = (await post(router, "/abort_request", {"rid": "g_"})).json()
        assert (told["total"], told["held"]) == (1, 2)
        gate.set()
        assert [(await task).status for task in tasks] == [409, 409, 200]


# --------------------------------------------------------------------------------------------------- vanished clients
async def leave_in_mid_answer(router, worker, count, body):
    """A client that leaves once ``count`` requests have reached the worker, its own as the last."""
    async with RawClient(router.port) as client:
        await client.send(build_request("POST", "/generate", json=body))
        await worker.wait_for_requests(count)


async def test_when_a_client_leaves_its_generation_is_aborted_by_rid_at_its_worker(scripted_workers):
    owner, other = await scripted_workers(2)
    owner.hold()
    async with running((owner,)) as router:
        async with RawClient(router.port) as client:
            await client.send(build_request("POST", "/generate", json={"text": "hi", "rid": "gone"}))
            await owner.wait_for_requests(1)
            await post(router, "/workers", {"url": other.url})
        await owner.wait_for_requests(2)
        assert control(owner) == [("POST", "/abort_request", b'{"rid": "gone"}')]
    assert control(other) == []


@pytest.mark.parametrize("switch", ["no rid", "switched off", "above the bound"])
async def test_without_a_known_rid_or_the_setting_nothing_is_aborted_by_name(switch, scripted_worker):
    settings = {
        "no rid": {},
        "switched off": {"abort_on_leave": False},
        "above the bound": {"max_rid_body_bytes": 10},
    }[switch]
    scripted_worker.hold()
    body = {"text": "hi"} if switch == "no rid" else {"text": "hi", "rid": "gone"}
    async with running((scripted_worker,), plugins={"engine_control": settings}) as router:
        await leave_in_mid_answer(router, scripted_worker, 1, body)
        await scripted_worker.wait_until_idle()
        scripted_worker.release()
        await post(router, "/generate", {"text": "hi"})
    assert control(scripted_worker) == []


async def test_a_rid_is_put_in_where_there_is_none_and_the_setting_says_so(scripted_worker):
    settings = {"inject_rid": True}
    async with running((scripted_worker,), plugins={"engine_control": settings}) as router:
        bodies = [
            b'{ "text":"hi", "odd" : -1e-05 }',
            b'{"text":"hi","rid":"mine"}',
            b'{"text":["a","b"]}',
            b'{"text":"hi","rid":null}',
            b"no json",
        ]
        answers = [await exchange_once(router.port, "POST", "/generate", body=body) for body in bodies]
        assert [answer.status for answer in answers] == [200, 200, 200, 200, 400]
    first, second, third, fourth, fifth = (request.body for request in scripted_worker.requests)
    rid = json.loads(first)["rid"]
    assert len(rid) == 32
    assert first == b'{ "text":"hi", "odd" : -1e-05, "rid": "%s"}' % rid.encode()
    assert (second, third, fifth) == (bodies[1], bodies[2], bodies[4])
    assert json.loads(fourth)["rid"] not in (None, rid)
    assert answers[0].json()["meta_info"]["id"] == rid


async def test_a_worker_without_that_route_is_told_once(scripted_worker):
    async def handler(request, connection):
        if request.path == "/abort_request":
            return await connection.answer(b"{}", 404)
        return await scripted_worker.engine.answer(request, connection)

    scripted_worker.handler = handler
    scripted_worker.hold()
    async with running((scripted_worker,)) as router:
        await leave_in_mid_answer(router, scripted_worker, 1, {"text": "hi", "rid": "r1"})
        await scripted_worker.wait_until(lambda: len(control(scripted_worker)) == 1)
        await scripted_worker.wait_until_idle()
        await leave_in_mid_answer(router, scripted_worker, 3, {"text": "hi", "rid": "r2"})
        await scripted_worker.wait_until_idle()
    assert len(control(scripted_worker)) == 1


async def test_a_real_engine_stops_when_its_client_leaves():
    ends = Ends()
    body = {"text": "count", "rid": "gone", "stream": True, "sampling_params": {"max_new_tokens": 2000}}
    body["sampling_params"]["ignore_eos"] = True
    async with (
        running_engine(step_delay_s=0.02) as served,
        running_router([served.url], enabled=ENABLED, classes=[ends.plugin]) as router,
    ):
        async with RawClient(router.port) as client:
            await client.send(build_request("POST", "/generate", json=body))
            await client.read_piece(await client.read_head())
            assert served.engine.running_requests == 1
        await ends.wait(1)
        async with asyncio.timeout(5):
            while served.engine.running_requests:  # noqa: ASYNC110  # the engine has no event for it
                await asyncio.sleep(0.01)


# -------------------------------------------------------------------------------------------------------- the metrics
async def test_engine_metrics_joins_all_workers_and_says_who_is_down(scripted_workers):
    first, second, dead = workers = await scripted_workers(3)
    page = b"# TYPE vllm:running gauge\nvllm:running 3\n"
    for worker in (first, second):
        worker.handler = reply(page, content_type="text/plain")
    async with running(workers) as router:
        await dead.stop()
        answer = await exchange_once(router.port, "GET", "/engine_metrics")
        assert answer.values("content-type") == ["text/plain; version=0.0.4; charset=utf-8"]
        assert answer.body.decode().splitlines() == [
            "# TYPE router_engine_metrics_up gauge",
            f'router_engine_metrics_up{{worker="{first.url}"}} 1',
            f'router_engine_metrics_up{{worker="{second.url}"}} 1',
            f'router_engine_metrics_up{{worker="{dead.url}"}} 0',
            "# TYPE vllm:running gauge",
            f'vllm:running{{worker="{first.url}"}} 3',
            f'vllm:running{{worker="{second.url}"}} 3',
        ]


async def test_engine_metrics_without_workers_is_an_empty_page():
    async with running(()) as router:
        answer = await exchange_once(router.port, "GET", "/engine_metrics")
        assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize(("setting", "value"), [("timeout_s", 0), ("max_rids", -1), ("nonsense", 1)])
async def test_a_bad_setting_is_an_error_at_start_that_names_it(setting, value):
    with pytest.raises(Exception, match=f"plugins.engine_control.{setting}"):
        async with running((), plugins={"engine_control": {setting: value}}):
            pass


async def test_a_client_key_is_replaced_by_the_workers_own():
    async with ScriptedWorker() as worker, running((), router={}) as router:
        await post(router, "/workers", {"url": worker.url, "api_key": "workers-key"})
        await exchange_once(router.port, "POST", "/flush_cache", {"Authorization": "Bearer clients-key"}, b"{}")
        assert worker.requests[0].get("authorization") == "Bearer workers-key"


def test_every_route_is_documented():
    readme = Path(router_engine_control.__file__).with_name("README.md").read_text(encoding="utf-8")
    for route in EngineControl(EngineControl.Settings()).routes():
        name = route.path.removeprefix("/v1") if "lora" in route.path else route.path
        assert name in readme, route.path
