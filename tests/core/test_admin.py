"""The router's own routes: workers in both dialects, sessions, health, and what is wrong with a call."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import pytest

from router_core import WorkerState, hookimpl
from router_core.testing import Faults, RawAnswer, RawClient, ScriptedWorker, build_request, exchange_once, reply

Serve = Callable[..., Awaitable[Any]]
ASK = {"text": "hi"}


async def call(router: Any, method: str, target: str, body: Any = None) -> RawAnswer:
    return await exchange_once(router.port, method, target, json=body)


def code(answer: RawAnswer) -> str | None:
    return answer.get("x-router-error")


async def urls(router: Any) -> list[str]:
    listed: list[str] = (await call(router, "GET", "/list_workers")).json()["urls"]
    return listed


# ---------------------------------------------------------------------------------------------------- SGLang's dialect
@pytest.mark.parametrize("how", ["?url=", "?worker_url=", "url", "worker_url"])
async def test_a_worker_is_added_and_removed_in_sglangs_dialect(serve: Serve, how: str) -> None:
    async def say(verb: str, url: str) -> RawAnswer:
        if how.startswith("?"):
            return await call(router, "POST", f"/{verb}_worker{how}{quote(url, safe='')}")
        return await call(router, "POST", f"/{verb}_worker", {how: url})

    async with ScriptedWorker() as worker:
        router = await serve()
        added = await say("add", worker.url + "/")
        assert (added.status, added.json()) == (200, {"status": "success", "worker_urls": {worker.url + "/": 0}})
        assert await urls(router) == [worker.url + "/"]
        assert (await call(router, "POST", "/generate", ASK)).status == 200
        removed = await say("remove", worker.url)
        assert (removed.status, removed.json()) == (200, {"status": "success"})
        assert await urls(router) == []
        assert (await say("remove", worker.url)).status == 404


async def test_a_url_may_stand_in_the_query_as_it_is(serve: Serve) -> None:
    router = await serve()
    assert (await call(router, "POST", "/add_worker?url=http://127.0.0.1:9/base")).status == 200
    assert await urls(router) == ["http://127.0.0.1:9/base"]


@pytest.mark.parametrize("body", [None, {}, {"url": ""}, {"url": 7}, {"url": None}, {"url": ["http://h:1"]}])
async def test_a_call_without_a_url_is_told_so(serve: Serve, body: Any) -> None:
    router = await serve()
    for verb in ("add", "remove"):
        answer = await call(router, "POST", f"/{verb}_worker", body)
        assert (answer.status, code(answer)) == (400, "missing_url")
        assert answer.json()["error"]["param"] == "url"


BAD_URLS = [
    "127.0.0.1:9",
    "ftp://h:1",
    "http://",
    "http://:80",
    "http://h:99999",
    "http://u:p@h:1",
    "http://h:1?x",
    "\ud800",
]


@pytest.mark.parametrize("url", BAD_URLS)
async def test_a_bad_url_is_refused_and_changes_nothing(serve: Serve, url: str) -> None:
    """po-bad-url"""
    router = await serve("http://127.0.0.1:9")
    calls = [("POST", "/add_worker", {"url": url}), ("POST", "/workers", {"url": url}), ("PUT", "/workers", [url])]
    for method, target, body in calls:
        text = json.dumps(body).encode()
        answer = await exchange_once(router.port, method, target, body=text)
        assert (answer.status, code(answer)) == (400, "bad_worker_url"), answer.body
        assert await urls(router) == ["http://127.0.0.1:9"]


async def test_an_empty_url_is_refused(serve: Serve) -> None:
    router = await serve()
    for method, target, body in (
        ("POST", "/add_worker?url=", None),
        ("POST", "/workers", {"url": ""}),
        ("PUT", "/workers", [""]),
    ):
        answer = await call(router, method, target, body)
        assert (answer.status, code(answer)) == (400, "missing_url")
    assert await urls(router) == []


async def test_spellings_of_one_url_are_one_worker(serve: Serve) -> None:
    """po-dup"""
    router = await serve()
    for url in ("http://h:80", "http://h:80/", "HTTP://H:80", "http://h"):
        assert (await call(router, "POST", "/add_worker", {"url": url})).status == 200
        assert (await call(router, "POST", "/workers", {"url": url})).status == 202
    assert await urls(router) == ["http://h:80"]
    assert (await call(router, "POST", "/remove_worker?url=http://H/")).status == 200
    assert await urls(router) == []


async def test_requests_before_the_first_worker_are_refused_and_then_served(serve: Serve) -> None:
    """po-add-race"""
    async with ScriptedWorker() as worker:
        router = await serve()
        early = await asyncio.gather(*(exchange_once(router.port, json=ASK) for _ in range(5)))
        assert {(answer.status, code(answer)) for answer in early} == {(503, "no_worker")}
        readiness = await call(router, "GET", "/readiness")
        assert (readiness.status, code(readiness), readiness.get("retry-after")) == (503, "no_worker", "1")
        await call(router, "POST", "/workers", {"url": worker.url})
        assert (await exchange_once(router.port, json=ASK)).status == 200
        assert (await call(router, "GET", "/readiness")).status == 200


# ------------------------------------------------------------------------------------------------ the /workers family
async def test_a_worker_is_registered_shown_changed_and_deleted(serve: Serve) -> None:
    router = await serve()
    body = {
        "url": "http://h:1/",
        "worker_type": "prefill",
        "labels": {"zone": "a"},
        "weight_version": 7,
        "priority": 3,
        "api_key": "sk-secret",
        "model_id": "unknown keys pass",
    }
    created = await call(router, "POST", "/workers", body)
    told = created.json()
    assert created.status == 202
    assert (told["status"], told["ignored"]) == ("accepted", ["model_id"])
    assert (told["url"], told["location"]) == ("http://h:1/", f"/workers/{told['worker_id']}")
    assert created.get("location") == told["location"]
    for name in (told["worker_id"], quote("http://h:1/", safe=""), quote("HTTP://H:1", safe=""), "http://h:1"):
        shown = await call(router, "GET", f"/workers/{name}")
        assert shown.status == 200
        worker = shown.json()
        assert (worker["id"], worker["url"], worker["worker_type"]) == (told["worker_id"], "http://h:1/", "prefill")
        assert (worker["labels"], worker["weight_version"], worker["priority"]) == ({"zone": "a"}, "7", 3.0)
        assert (worker["is_healthy"], worker["status"], worker["load"], worker["reason"]) == (True, "ready", 0, None)
        assert "sk-secret" not in shown.body.decode()
    changed = await call(
        router, "PATCH", f"/workers/{told['worker_id']}", {"weight_version": "8", "labels": {"zone": "b"}}
    )
    assert (changed.status, changed.json()["weight_version"], changed.json()["labels"]) == (200, "8", {"zone": "b"})
    assert changed.json()["generation"] == worker["generation"]
    listed = (await call(router, "GET", "/workers")).json()
    assert (listed["total"], [w["id"] for w in listed["workers"]]) == (1, [told["worker_id"]])
    deleted = await call(router, "DELETE", f"/workers/{quote('http://h:1', safe='')}")
    assert (deleted.status, deleted.json()["worker_id"]) == (202, told["worker_id"])
    assert (await call(router, "GET", "/workers")).json() == {"workers": [], "total": 0}


async def test_a_misspelt_field_is_named_in_the_answer_and_in_the_log(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    router = await serve()
    with caplog.at_level("INFO", "router_core"):
        created = await call(router, "POST", "/workers", {"url": "http://h:1", "lables": {"rack": "b"}})
        assert (created.status, created.json()["ignored"]) == (202, ["lables"])
        assert "ignored" not in (await call(router, "POST", "/workers", {"url": "http://h:1"})).json()
    assert [r.getMessage() for r in caplog.records if "ignored" in r.message] == [
        "worker http://h:1: fields that mean nothing here were ignored: ['lables']"
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", "high"),
        ("priority", float("nan")),
        ("priority", float("inf")),
        ("priority", 10**400),
        ("priority", True),
        ("labels", ["a"]),
        ("labels", {"a": 1}),
        ("labels", {"a": "\ud800"}),
        ("labels", {"\udfff": "a"}),
        ("weight_version", {"a": 1}),
        ("weight_version", True),
        ("weight_version", "a\nb"),
        ("weight_version", ""),
        ("api_key", "a b"),
        ("api_key", "key\n"),
        ("api_key", "k\r\nevil: 1"),
        ("api_key", 7),
        ("worker_type", "ключ"),
        ("worker_type", ""),
        ("dp_size", 0),
        ("dp_size", "2"),
        ("url", 7),
    ],
)
async def test_a_bad_field_is_named_and_changes_nothing(serve: Serve, field: str, value: Any) -> None:
    router = await serve("http://h:1")
    before = (await call(router, "GET", "/workers")).json()
    calls: list[tuple[str, str, Any]] = [
        ("POST", "/workers", {"url": "http://new:1", field: value}),
        ("PUT", "/workers", [{"url": "http://new:1"}, {"url": "http://other:1", field: value}]),
        ("PATCH", "/workers/http://h:1", {field: value}),
    ]
    for method, target, body in calls:
        answer = await exchange_once(router.port, method, target, body=json.dumps(body).encode())
        assert answer.status == 400, (method, answer.body)
        assert answer.json()["error"]["param"] == field
        assert (await call(router, "GET", "/workers")).json() == before


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"nul", b"[" * 100_000, b'{"url": ' + b"9" * 5000 + b"}"])
async def test_malformed_json_is_told_with_the_reason(serve: Serve, body: bytes) -> None:
    router = await serve("http://h:1")
    targets = [("POST", "/add_worker"), ("POST", "/remove_worker"), ("POST", "/workers"), ("PUT", "/workers")]
    targets += [("PATCH", "/workers/http://h:1"), ("POST", "/sessions"), ("POST", "/workers/update_stats")]
    for method, target in targets:
        answer = await exchange_once(router.port, method, target, body=body)
        assert (answer.status, code(answer)) == (400, "malformed_body"), target
        assert answer.json()["error"]["message"].startswith("the body is not JSON: ")


@pytest.mark.parametrize("body", [[], "text", 7, None, True])
async def test_a_body_of_another_kind_is_told(serve: Serve, body: Any) -> None:
    router = await serve("http://h:1")
    for method, target in (("POST", "/workers"), ("POST", "/sessions"), ("PATCH", "/workers/http://h:1")):
        answer = await exchange_once(router.port, method, target, body=json.dumps(body).encode())
        assert answer.status == 400 or (body is None and target != "/workers") or target == "/sessions", target
    answer = await exchange_once(router.port, "PUT", "/workers", body=json.dumps({"workers": body}).encode())
    assert answer.status == (200 if body == [] else 400)


async def test_a_body_of_our_own_routes_is_bounded(serve: Serve) -> None:
    router = await serve()
    answer = await exchange_once(router.port, "POST", "/workers", body=b"[" + b" " * (17 << 20))
    assert (answer.status, code(answer)) == (413, "body_too_large")


async def test_unknown_names_paths_and_methods_are_told_in_the_envelope(serve: Serve) -> None:
    router = await serve("http://h:1")
    wrong: list[tuple[str, str, int, str]] = [
        ("GET", "/workers/nobody", 404, "unknown_worker"),
        ("DELETE", "/workers/nobody", 404, "unknown_worker"),
        ("PATCH", "/workers/http://h:2", 404, "unknown_worker"),
        ("POST", "/remove_worker?url=http://h:2", 404, "unknown_worker"),
        ("GET", "/workers/", 404, "unknown_worker"),
        ("GET", "/sessions/nobody", 404, "unknown_session"),
        ("DELETE", "/sessions/nobody", 404, "unknown_session"),
        ("GET", "/health/more", 404, "not_found"),
        ("GET", "/plugins/nobody/x", 404, "not_found"),
        ("GET", "/add_worker", 405, "method_not_allowed"),
        ("DELETE", "/workers", 405, "method_not_allowed"),
        ("PUT", "/workers/http://h:1", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("DELETE", "/sessions", 405, "method_not_allowed"),
        ("POST", "/list_workers", 405, "method_not_allowed"),
        ("DELETE", "/workers/http://h:1?wait=maybe", 400, "bad_value"),
    ]
    for method, target, status, expected in wrong:
        answer = await exchange_once(router.port, method, target)
        assert (answer.status, code(answer)) == (status, expected), target
        error = answer.json()["error"]
        assert error["code"] == expected
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        assert (answer.get("content-type"), len(answer.values("content-length"))) == ("application/json", 1)
        assert (answer.get("allow") is not None) is (status == 405)


async def test_a_wrong_method_is_told_all_right_ones(serve: Serve) -> None:
    router = await serve("http://h:1")
    for target, allowed in (("/workers", "GET, HEAD, POST, PUT"), ("/workers/http://h:1", "DELETE, GET, HEAD, PATCH")):
        assert (await exchange_once(router.port, "OPTIONS", target)).get("allow") == allowed


async def test_a_percent_encoded_first_segment_is_still_ours(serve: Serve) -> None:
    router = await serve("http://h:1")
    assert (await call(router, "GET", "/list%5Fworkers")).json() == {"urls": ["http://h:1"]}


async def test_a_fault_of_a_plugin_in_our_own_routes_is_told_and_the_connection_lives(serve: Serve) -> None:
    class Breaks:
        @hookimpl
        def describe_session(self) -> Any:
            raise ValueError("no description")

        @hookimpl
        async def session_opened(self, body: dict[str, Any]) -> Any:
            return body.get("nonsense")

    router = await serve(classes=(Breaks,))
    async with RawClient(router.port) as client:
        assert (await client.request("POST", "/sessions", json={"session_id": "s"})).status == 200
        answer = await client.request("GET", "/sessions/s")
        assert (answer.status, code(answer)) == (500, "plugin_error")
        for nonsense in (7, "text", [1], {"a": 1}):
            answer = await client.request("POST", "/sessions", json={"nonsense": nonsense})
            assert (answer.status, code(answer)) == (500, "plugin_error")
        assert (await client.request("GET", "/health")).status == 200


# ---------------------------------------------------------------------------------------------------- PUT, the full set
async def test_the_full_set_adds_keeps_and_drains(serve: Serve) -> None:
    async with ScriptedWorker() as old, ScriptedWorker() as kept, ScriptedWorker() as new:
        router = await serve(old, kept)
        old.hold()
        running = asyncio.create_task(exchange_once(router.port, json=ASK))
        await old.wait_for_requests(1)
        generation = router.application.workers.get(kept.url).generation
        body = [kept.url + "/", {"url": new.url, "weight_version": "3"}]
        answer = await call(router, "PUT", "/workers", body)
        assert answer.status == 200
        assert answer.json() == {"added": [new.url], "kept": [kept.url], "drained": [old.url]}
        assert router.application.workers.get(kept.url).generation == generation
        shown = {w["url"]: w["status"] for w in (await call(router, "GET", "/workers")).json()["workers"]}
        assert shown == {old.url: "draining", kept.url: "ready", new.url: "ready"}
        for _ in range(4):
            assert (await exchange_once(router.port, json=ASK)).get("x-router-worker") != old.url
        old.release()
        assert (await running).status == 200
        await router.settle()
        async with asyncio.timeout(5):
            while len(await urls(router)) > 2:  # noqa: ASYNC110  # the drain ends in a task of its own
                await asyncio.sleep(0.01)
        assert (await call(router, "PUT", "/workers", {"workers": []})).json()["drained"] == [kept.url, new.url]
        assert await urls(router) == []


async def test_the_full_set_revives_who_was_out(serve: Serve) -> None:
    router = await serve("http://h:1")
    worker = router.workers[0]
    router.application.workers.quarantine(worker, worker.generation, "for a test")
    before = worker.generation
    assert (await call(router, "PUT", "/workers", ["http://h:1"])).json()["added"] == ["http://h:1"]
    assert (worker.state, worker.generation > before) == (WorkerState.READY, True)


# ------------------------------------------------------------------------------------------------------------- draining
async def test_a_deleted_worker_finishes_what_runs_and_gets_nothing_new(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.hold()
        running = asyncio.create_task(exchange_once(router.port, json=ASK))
        await worker.wait_for_requests(1)
        assert (await call(router, "DELETE", f"/workers/{quote(worker.url, safe='')}")).status == 202
        refused = await exchange_once(router.port, json=ASK)
        assert (refused.status, code(refused)) == (503, "no_worker")
        assert refused.json()["error"]["workers"] == {worker.url: "draining: draining"}
        shown = (await call(router, "GET", "/workers")).json()["workers"][0]
        assert (shown["is_healthy"], shown["status"], shown["load"]) == (False, "draining", 1)
        worker.release()
        assert (await running).status == 200


async def test_a_delete_that_waits_answers_when_the_last_request_has_ended(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.hold()
        running = asyncio.create_task(exchange_once(router.port, json=ASK))
        await worker.wait_for_requests(1)
        deleting = asyncio.create_task(call(router, "DELETE", f"/workers/{router.workers[0].id}?wait=true"))
        second = asyncio.create_task(call(router, "DELETE", f"/workers/{router.workers[0].id}?wait=1"))
        while router.workers[0].state is not WorkerState.DRAINING:  # noqa: ASYNC110  # the call begins in the server
            await asyncio.sleep(0)
        assert not deleting.done()
        worker.release()
        for answer in await asyncio.gather(deleting, second):
            assert (answer.status, answer.json()["status"], answer.json()["drained"]) == (200, "removed", True)
        assert (await running).status == 200
        assert await urls(router) == []


async def test_a_drain_ends_at_its_deadline_and_the_request_goes_on(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, router={"drain_timeout_s": 0.05})
        worker.hold()
        running = asyncio.create_task(exchange_once(router.port, json=ASK))
        await worker.wait_for_requests(1)
        answer = await call(router, "DELETE", f"/workers/{router.workers[0].id}?wait=true")
        assert (answer.status, answer.json()["drained"]) == (200, False)
        assert await urls(router) == []
        worker.release()
        assert (await running).status == 200


async def test_a_drained_worker_that_registers_again_stays(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.hold()
        running = asyncio.create_task(exchange_once(router.port, json=ASK))
        await worker.wait_for_requests(1)
        deleting = asyncio.create_task(call(router, "DELETE", f"/workers/{router.workers[0].id}?wait=true"))
        while router.workers[0].state is not WorkerState.DRAINING:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await call(router, "POST", "/workers", {"url": worker.url})).status == 202
        answer = await deleting
        assert answer.json()["status"] == "kept"
        assert await urls(router) == [worker.url]
        assert router.workers[0].state is WorkerState.READY
        worker.release()
        assert (await running).status == 200
        assert await urls(router) == [worker.url]


async def test_a_removed_worker_finishes_what_runs_and_its_late_result_touches_nothing(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.hold()
        running = asyncio.create_task(exchange_once(router.port, json=ASK))
        await worker.wait_for_requests(1)
        old = router.workers[0]
        assert (await call(router, "POST", f"/remove_worker?url={worker.url}")).status == 200
        assert (await call(router, "POST", f"/add_worker?url={worker.url}")).json()["worker_urls"] == {worker.url: 0}
        new = router.workers[0]
        assert (new is old, new.id == old.id, new.generation > old.generation) == (False, True, True)
        assert (old.inflight, new.inflight) == (1, 0)
        assert router.application.workers.quarantine(old, old.generation, "late") is False
        assert router.application.workers.quarantine(new, old.generation, "late") is False
        worker.release()
        assert (await running).status == 200
        await router.ends.wait()
        assert (old.inflight, new.inflight, new.state) == (0, 0, WorkerState.READY)


# -------------------------------------------------------------------------------------------------- data-parallel ranks
async def test_a_rank_is_part_of_a_workers_identity(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve()
        for rank in (0, 1):
            assert (await call(router, "POST", "/workers", {"url": f"{worker.url}@{rank}"})).status == 202
        listed = (await call(router, "GET", "/workers")).json()["workers"]
        assert [(w["url"], w["dp_rank"]) for w in listed] == [(f"{worker.url}@{rank}", rank) for rank in (0, 1)]
        assert len({w["id"] for w in listed}) == 2
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.get("x-router-worker")) == (200, f"{worker.url}@0")
        assert worker.requests[0].get("host") == f"127.0.0.1:{worker.port}"
        assert (await call(router, "DELETE", f"/workers/{quote(worker.url + '@1', safe='')}")).status == 202
        assert await urls(router) == [f"{worker.url}@0"]


async def test_an_api_key_of_a_worker_replaces_the_clients(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve()
        await call(router, "POST", "/workers", {"url": worker.url, "api_key": "sk-worker"})
        await exchange_once(router.port, headers=[("Authorization", "Bearer sk-agent")], json=ASK)
        assert worker.requests[0].values("authorization") == ["Bearer sk-worker"]


async def test_the_number_of_workers_is_bounded(serve: Serve) -> None:
    router = await serve("http://h:1", router={"max_workers": 1})
    answer = await call(router, "POST", "/workers", {"url": "http://h:2"})
    assert (answer.status, code(answer)) == (503, "too_many_workers")
    assert "router.max_workers" in answer.json()["error"]["message"]
    assert (await call(router, "POST", "/workers", {"url": "http://h:1"})).status == 202


async def test_health_tells_that_the_process_lives(serve: Serve) -> None:
    router = await serve("http://h:1")
    for target in ("/health", "/liveness"):
        answer = await call(router, "GET", target)
        assert (answer.status, answer.json()["status"]) == (200, "ok")
        assert (await call(router, "HEAD", target)).status == 200


async def test_a_stalled_worker_does_not_delay_our_own_routes(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.fault(Faults.stall())
        async with RawClient(router.port) as client:
            await client.send(build_request(json=ASK))
            await worker.wait_for_requests(1)
            assert (await call(router, "GET", "/health")).status == 200
            assert (await call(router, "GET", "/workers")).json()["workers"][0]["load"] == 1
        worker.handler = reply()
