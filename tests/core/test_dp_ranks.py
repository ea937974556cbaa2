"""Data-parallel ranks: each is a worker of its own, and its rank reaches the engine."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from router_core.testing import RawAnswer, ScriptedWorker, exchange_once
from router_core.testing.router import RunningRouter, running_router
from router_core.urls import rank_urls


async def ask(router: RunningRouter, method: str, target: str, body: object = None) -> RawAnswer:
    return await exchange_once(router.port, method, target, json=body)


async def workers_of(router: RunningRouter) -> list[dict[str, Any]]:
    return (await ask(router, "GET", "/workers")).json()["workers"]  # type: ignore[no-any-return]  # JSON


def rank_seen_by(worker: ScriptedWorker) -> str | None:
    return worker.requests[-1].get("x-data-parallel-rank")


# ----------------------------------------------------------------------------------------------------- registering
async def test_a_dp_size_registers_each_rank_as_a_worker() -> None:
    async with running_router(enabled=[]) as router:
        answer = await ask(router, "POST", "/workers", {"url": "http://h:1/", "dp_size": 3, "weight_version": "7"})
        assert answer.status == 202
        told = answer.json()
        ranks = await workers_of(router)
        assert [worker["url"] for worker in ranks] == ["http://h:1@0", "http://h:1@1", "http://h:1@2"]
        assert [worker["dp_rank"] for worker in ranks] == [0, 1, 2]
        assert {(worker["dp_size"], worker["weight_version"]) for worker in ranks} == {(3, "7")}
        assert {worker["base_id"] for worker in ranks} == {told["worker_id"]}
        assert told["ranks"] == {worker["url"]: worker["id"] for worker in ranks}


async def test_a_dp_size_of_one_is_an_ordinary_worker() -> None:
    async with running_router(enabled=[]) as router:
        told = (await ask(router, "POST", "/workers", {"url": "http://h:1", "dp_size": 1})).json()
        (worker,) = await workers_of(router)
        assert (worker["url"], worker["dp_rank"], worker["id"]) == ("http://h:1", None, told["worker_id"])
        assert worker["base_id"] == worker["id"]


async def test_a_server_registered_with_fewer_ranks_loses_the_others() -> None:
    async with running_router(enabled=[]) as router:
        for dp_size, urls in ((4, 4), (2, 2), (1, 1), (2, 2)):
            await ask(router, "POST", "/workers", {"url": "http://h:1", "dp_size": dp_size})
            assert len(await workers_of(router)) == urls
        await ask(router, "POST", "/workers", {"url": "http://h:2"})
        assert len(await workers_of(router)) == 3


@pytest.mark.parametrize("name", ["http://h:1", "http://H:1/", None])
async def test_a_servers_name_means_all_its_ranks(name: str | None) -> None:
    async with running_router(enabled=[]) as router:
        told = (await ask(router, "POST", "/workers", {"url": "http://h:1", "dp_size": 2})).json()
        path = f"/workers/{quote(name or told['worker_id'], safe='')}"
        shown = (await ask(router, "GET", path)).json()
        assert [worker["dp_rank"] for worker in shown["ranks"]] == [0, 1]
        await ask(router, "PATCH", path, {"labels": {"engine": "vllm"}})
        assert [worker["labels"] for worker in await workers_of(router)] == [{"engine": "vllm"}] * 2
        assert (await ask(router, "DELETE", path)).status == 202
        assert await workers_of(router) == []
        assert (await ask(router, "DELETE", path)).status == 404


async def test_one_rank_can_be_removed_alone() -> None:
    async with running_router(enabled=[]) as router:
        await ask(router, "POST", "/workers", {"url": "http://h:1", "dp_size": 2})
        assert (await ask(router, "POST", "/remove_worker?url=http://h:1@0")).status == 200
        assert [worker["dp_rank"] for worker in await workers_of(router)] == [1]
        assert (await ask(router, "POST", "/remove_worker?url=http://h:1")).status == 200
        assert await workers_of(router) == []


async def test_the_full_set_may_name_servers_by_their_dp_size() -> None:
    async with running_router(enabled=[]) as router:
        await ask(router, "PUT", "/workers", [{"url": "http://h:1", "dp_size": 2}, "http://h:2"])
        answer = await ask(router, "PUT", "/workers", [{"url": "http://h:1", "dp_size": 3}])
        assert answer.json() == {
            "added": ["http://h:1@2"],
            "kept": ["http://h:1@0", "http://h:1@1"],
            "drained": ["http://h:2"],
        }


@pytest.mark.parametrize("dp_size", [0, -1, True, "2", 1.5, 100_000])
async def test_a_wrong_dp_size_is_refused_by_name(dp_size: object) -> None:
    async with running_router(enabled=[]) as router:
        answer = await ask(router, "POST", "/workers", {"url": "http://h:1", "dp_size": dp_size})
        assert (answer.status, answer.json()["error"]["param"]) == (400, "dp_size")
        assert await workers_of(router) == []


async def test_a_rank_and_a_dp_size_together_are_refused() -> None:
    async with running_router(enabled=[]) as router:
        for method, body in (
            ("POST", {"url": "http://h:1@0", "dp_size": 2}),
            ("PUT", [{"url": "http://h:1@0", "dp_size": 2}]),
        ):
            assert (await ask(router, method, "/workers", body)).status == 400
        await ask(router, "POST", "/workers", {"url": "http://h:1"})
        answer = await ask(router, "PATCH", "/workers/http%3A%2F%2Fh%3A1", {"dp_size": 2})
        assert (answer.status, answer.json()["error"]["param"]) == (400, "dp_size")


async def test_a_server_whose_ranks_do_not_all_fit_is_refused_whole() -> None:
    async with running_router(enabled=[], router={"max_workers": 3}) as router:
        assert (await ask(router, "POST", "/workers", {"url": "http://h:1", "dp_size": 4})).status == 503
        assert await workers_of(router) == []
        assert (await ask(router, "POST", "/workers", {"url": "http://h:1", "dp_size": 3})).status == 202


def test_ranks_are_spelled_like_their_server() -> None:
    assert rank_urls("HTTP://H:1/x/", 2) == ["HTTP://H:1/x@0", "HTTP://H:1/x@1"]
    assert rank_urls("http://h:1/", 1) == ["http://h:1/"]
    with pytest.raises(ValueError, match="names one rank"):
        rank_urls("http://h:1@3", 2)


# ---------------------------------------------------------------------------------------------------- handing it over
async def test_a_rank_reaches_the_engine_by_header_and_body() -> None:
    async with ScriptedWorker() as worker, running_router([f"{worker.url}@3"], enabled=[]) as router:
        body = b'{"text":"hi",  "sampling_params": {"temperature": 1e-05}}'
        await exchange_once(router.port, body=body)
        assert rank_seen_by(worker) == "3"
        seen = worker.requests[-1].json()
        assert (seen["routed_dp_rank"], seen["data_parallel_rank"]) == (3, 3)
        assert worker.requests[-1].body.startswith(body[:-1])


async def test_a_client_cannot_steer_past_the_chosen_rank() -> None:
    async with ScriptedWorker() as worker, running_router([f"{worker.url}@1"], enabled=[]) as router:
        wishes = {"X-Data-Parallel-Rank": "0", "X-Override-Routed-DP-Rank": "0"}
        await exchange_once(
            router.port, headers=wishes, json={"text": "hi", "routed_dp_rank": 0, "data_parallel_rank": 0}
        )
        request = worker.requests[-1]
        assert rank_seen_by(worker) == "1"
        assert request.get("x-override-routed-dp-rank") is None
        assert request.json() == {"text": "hi", "routed_dp_rank": 1, "data_parallel_rank": 1}


async def test_a_vllm_worker_gets_its_rank_by_header_alone() -> None:
    async with ScriptedWorker("vllm") as worker, running_router(enabled=[]) as router:
        registered = {"url": worker.url, "dp_size": 2, "labels": {"engine": "vllm"}}
        await ask(router, "POST", "/workers", registered)
        body = b'{"model": "m",   "messages": [{"role": "user", "content": "hi"}]}'
        for _ in range(2):
            await exchange_once(router.port, target="/v1/chat/completions", body=body)
        assert [request.body for request in worker.requests] == [body, body]
        assert sorted(request.get("x-data-parallel-rank") or "" for request in worker.requests) == ["0", "1"]


async def test_a_worker_without_rank_gets_what_the_client_sent() -> None:
    async with ScriptedWorker() as worker, running_router([worker.url], enabled=[]) as router:
        await exchange_once(router.port, headers={"X-Data-Parallel-Rank": "5"}, body=b'{"text":"hi"}')
        assert rank_seen_by(worker) == "5"
        assert worker.requests[-1].body == b'{"text":"hi"}'


@pytest.mark.parametrize(
    ("method", "headers", "body"),
    [
        ("GET", {}, b""),
        ("POST", {"content-type": "application/octet-stream"}, b'{"text": "hi"}'),
        ("POST", {"content-encoding": "gzip"}, b"\x1f\x8b"),
        ("POST", {}, b"[1, 2]"),
    ],
)
async def test_a_body_that_is_no_json_object_passes_unchanged(
    method: str, headers: dict[str, str], body: bytes
) -> None:
    async with ScriptedWorker() as worker, running_router([f"{worker.url}@2"], enabled=[]) as router:
        await exchange_once(router.port, method, "/anything", headers, body)
        assert rank_seen_by(worker) == "2"
        assert worker.requests[-1].body == body


# ------------------------------------------------------------------------------------------------------ known caches
async def test_the_cache_epoch_rises_when_a_cache_is_known_to_be_empty() -> None:
    async with running_router(["http://h:1"], enabled=[]) as router:
        table = router.application.workers
        (worker,) = table
        epochs = [worker.cache_epoch]
        table.update(worker, weight_version="2")
        epochs.append(worker.cache_epoch)
        table.update(worker, weight_version="2", labels={"a": "b"})
        epochs.append(worker.cache_epoch)
        table.forget_cache(worker)
        epochs.append(worker.cache_epoch)
        table.add("http://h:1")
        epochs.append(worker.cache_epoch)
        assert epochs == [0, 1, 1, 2, 3]
