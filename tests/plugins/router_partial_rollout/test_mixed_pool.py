"""A pool of SGLang and vLLM: an answer is never begun by one kind of worker and gone on with by the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from router_core.reference_engine import running_engine
from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import RawAnswer, exchange_once
from router_core.testing.router import running_router

from .test_captured_chat import SAID, Dictated, of_stream, of_whole

OTHER = {"sglang": "vllm", "vllm": "sglang"}
CHAT = {"model": "reference", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 200}


def chat(stream: bool) -> dict[str, Any]:
    return {**CHAT, "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}


COMPLETION = {"model": "reference", "prompt": [300, 301, 302], "max_tokens": 200}


class Mixed:
    """A worker of one kind that begins and is then paused, and another one of the other kind."""

    def __init__(self, begins: Any, other: Any, router: Any, script: Dictated) -> None:
        self.begins, self.other, self.router, self.script = begins, other, router, script

    async def post(self, target: str, body: Any = None) -> RawAnswer:
        return await exchange_once(self.router.port, target=target, json=body, timeout_s=30)

    async def aborted(self, target: str, body: dict[str, Any]) -> asyncio.Task[RawAnswer]:
        """The answer whose first worker has aborted it, while only the other one is to be had."""
        asked = asyncio.create_task(self.post(target, body))
        async with asyncio.timeout(10):
            while not any(len(each.output_ids) > 5 for each in self.begins.engine.unfinished()):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert (await self.post("/add_worker?url=" + self.other.url)).status == 200
        assert (await self.post("/routing/pause?worker_id=" + self.begins.url)).status == 200
        self.begins.engine.abort_all()
        return asked


@asynccontextmanager
async def mixed(first: str, *, mode: str = "inject") -> AsyncIterator[Mixed]:
    script = Dictated()
    options: dict[str, Any] = {"script": script, "step_delay_s": 0.002, "max_cached_tokens": 0}
    async with (
        running_engine(dialect=first, **options) as begins,
        running_engine(dialect=OTHER[first], **options) as other,
        running_router(
            [begins.url],
            enabled=["hf_tokenizer", "tito", "partial_rollout", "weight_version", "least_inflight"],
            plugins={
                "hf_tokenizer": {"path": str(ASSETS)},
                "tito": {"mode": mode},
                "partial_rollout": {"when": "always", "weight": 0},
                "weight_version": {"version_path": ""},
            },
        ) as router,
    ):
        script.ids = [*begins.engine.tokenizer.encode(SAID["content"] * 3), begins.engine.tokenizer.eos_id]
        run = Mixed(begins, other, router, script)
        assert (await run.post("/sessions", {"session_id": "s"})).status == 200
        yield run


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["inject", "translate"])
@pytest.mark.parametrize("first", OTHER)
async def test_a_captured_turn_waits_for_a_worker_of_its_kind(first: str, mode: str, stream: bool) -> None:
    async with mixed(first, mode=mode) as run:
        asked = await run.aborted("/sessions/s/v1/chat/completions", chat(stream))
        async with asyncio.timeout(10):
            while not run.router.application.holds:
                assert not asked.done(), (await asked).body[-500:]
                await asyncio.sleep(0.001)
        assert (await run.post("/routing/resume?worker_id=" + run.begins.url)).status == 200
        told = (of_stream if stream else of_whole)(await asked)
        assert told["finish_reason"] == "stop"
        (row,) = (await run.post("/sessions/s/samples", {})).json()["samples"]
        assert row["complete"], row["reasons"]
        assert row["tokens"][-len(run.script.ids) :] == run.script.ids


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["inject", "translate"])
@pytest.mark.parametrize("first", OTHER)
async def test_a_captured_turn_without_a_worker_of_its_kind_ends_there(first: str, mode: str, stream: bool) -> None:
    async with mixed(first, mode=mode) as run:
        asked = await run.aborted("/sessions/s/v1/chat/completions", chat(stream))
        assert (await exchange_once(run.router.port, "POST", "/remove_worker?url=" + run.begins.url)).status == 200
        told = (of_stream if stream else of_whole)(await asked)
        assert told["finish_reason"] == "abort"
        shown = (await exchange_once(run.router.port, "GET", "/sessions/s")).json()
        assert shown["trajectories"] == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("asks", [{}, {"logprobs": 1, "return_token_ids": True}])
@pytest.mark.parametrize("first", OTHER)
async def test_a_completion_that_meets_the_other_kind_is_an_error(first: str, asks: Any, stream: bool) -> None:
    async with mixed(first) as run:
        answer = await (await run.aborted("/v1/completions", {**COMPLETION, **asks, "stream": stream}))
        if stream:
            assert b"one segment is SGLang's and one is vLLM's" in answer.body or not answer.clean
            assert b'"segments"' not in answer.body
        else:
            assert (answer.status, answer.json()["error"]["code"]) == (502, "segment_mismatch")
            assert "one segment is SGLang's and one is vLLM's" in answer.json()["error"]["message"]
