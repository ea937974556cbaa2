"""The calls that slime and miles make of a router, made as they make them, against the default set of plugins."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from router_core.config import DEFAULT_ENABLED
from router_core.reference_engine import running_engine
from router_core.testing.router import RunningRouter, running_router

PROMPT = [314, 159, 265, 35]
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 8, "sampling_seed": 7, "ignore_eos": True}


@asynccontextmanager
async def started() -> AsyncIterator[tuple[RunningRouter, httpx.AsyncClient]]:
    """A router that knows no worker yet, and a client as slime's is."""
    async with running_router(enabled=DEFAULT_ENABLED) as router, httpx.AsyncClient(base_url=router.url) as client:
        yield router, client


async def test_an_engine_of_slime_registers_by_add_worker_and_leaves_by_remove_worker() -> None:
    async with running_engine() as engine, started() as (_, client):
        added = await client.post(f"/add_worker?url={engine.url}")
        assert (added.status_code, added.json()) == (200, {"status": "success", "worker_urls": {engine.url: 0}})
        assert (await client.get("/list_workers")).json() == {"urls": [engine.url]}
        assert (
            await client.post("/generate", json={"input_ids": PROMPT, "sampling_params": SAMPLING})
        ).status_code == 200
        assert (await client.post(f"/remove_worker?url={engine.url}")).json() == {"status": "success"}
        assert (await client.get("/list_workers")).json() == {"urls": []}


async def test_an_engine_of_slime_registers_by_workers_and_leaves_by_its_id() -> None:
    async with running_engine() as engine, started() as (_, client):
        accepted = await client.post("/workers", json={"url": engine.url, "worker_type": "regular"})
        assert accepted.status_code == 202
        listed = (await client.get("/workers")).json()["workers"]
        (worker_id,) = [worker["id"] for worker in listed if worker["url"] == engine.url]
        assert accepted.headers["location"] == f"/workers/{worker_id}"
        assert (await client.delete(f"/workers/{worker_id}")).status_code in (200, 202)
        assert (await client.get("/workers")).json()["total"] == 0


async def test_a_rollout_of_slime_gets_ids_logprobs_experts_and_the_weight_version() -> None:
    payload = {
        "input_ids": PROMPT,
        "sampling_params": SAMPLING,
        "return_logprob": True,
        "return_routed_experts": True,
        "rid": "rollout-1",
    }
    async with running_engine(weight_version="3") as engine, started() as (_, client):
        await client.post(f"/add_worker?url={engine.url}")
        answer = await client.post("/generate", json=payload, headers={"X-SMG-Routing-Key": "group-1"})
        direct = await client.post(f"{engine.url}/generate", json={**payload, "rid": "rollout-2"})
        told, same = answer.json()["meta_info"], direct.json()["meta_info"]
        assert told["id"] == "rollout-1"
        assert told["weight_version"] == "3"
        assert [item[1] for item in told["output_token_logprobs"]] == answer.json()["output_ids"]
        assert told["output_token_logprobs"] == same["output_token_logprobs"]
        assert told["routed_experts"] == same["routed_experts"]


async def test_a_streamed_rollout_of_slime_grows_until_done() -> None:
    payload = {"text": "List the files.", "sampling_params": SAMPLING, "stream": True, "return_logprob": True}
    async with running_engine() as engine, started() as (_, client):
        await client.post(f"/add_worker?url={engine.url}")
        async with client.stream("POST", "/generate", json=payload) as answer:
            events = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
        assert events[-1] == "[DONE]"
        lengths = [len(json.loads(event)["output_ids"]) for event in events[:-1]]
        assert lengths == sorted(lengths)
        assert lengths[-1] == 8


async def test_slime_aborts_what_runs_at_each_worker_and_by_the_router() -> None:
    async with running_engine() as engine, started() as (_, client):
        await client.post(f"/add_worker?url={engine.url}")
        for url in (await client.get("/list_workers")).json()["urls"]:
            assert (await client.post(f"{url}/abort_request", json={"abort_all": True})).status_code == 200
        told = (await client.post("/abort_request", json={"abort_all": True})).json()
        assert (told["total"], told["succeeded"], told["failed"]) == (1, 1, [])


async def test_an_agent_of_miles_runs_in_a_session_of_the_router() -> None:
    async with running_engine() as engine, started() as (_, client):
        await client.post("/workers", json={"url": engine.url})
        session_id = (await client.post("/sessions", json={})).json()["session_id"]
        base_url = f"/sessions/{session_id}"
        ask = {"model": "default", "messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 4}
        answer = await client.post(f"{base_url}/v1/chat/completions", json=ask)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] <= 4
        assert (await client.get(base_url)).json()["session_id"] == session_id
        assert (await client.delete(base_url)).status_code == 204
        assert (await client.get(base_url)).status_code == 404


async def test_a_base_url_with_v1_is_as_good_as_one_without() -> None:
    async with running_engine() as engine, started() as (_, client):
        await client.post("/workers", json={"url": engine.url})
        opened = (await client.post("/sessions", json={})).json()
        assert opened["base_url"].endswith(f"/sessions/{opened['session_id']}/v1")
        ask = {"model": "default", "messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 4}
        for url in (f"{opened['base_url']}/chat/completions", f"{opened['base_url']}/v1/chat/completions"):
            assert (await client.post(url, json=ask)).status_code == 200
