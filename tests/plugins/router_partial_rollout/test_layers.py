"""With the layers outside and inside of it: rewriting plugins, sessions, retries."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from router_partial_rollout.plugin import PartialRollout

from router_core import Answer, Attempt, CallNext, Exchange, hookimpl
from router_core.reference_engine import running_engine
from router_core.testing import ScriptedWorker, exchange_once
from router_core.testing.router import running_router

IDS = [5, 6, 7, 8]


class ChatAsGenerate:
    """Does what capture in mode ``translate`` does: chat becomes ``/generate`` with ids, for each attempt anew."""

    requires_api = ">=1,<2"
    name = "chat_as_generate"

    def __init__(self, settings: Any) -> None:
        self.answers: list[dict[str, Any]] = []

    @hookimpl
    async def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Answer:
        answer = await call_next(exchange)
        told = json.loads(await answer.body())
        message = {"role": "assistant", "content": told["text"]}
        return Answer.json(200, {"choices": [{"message": message, "token_ids": told["output_ids"]}], "told": told})

    @hookimpl
    async def attempt_start(self, exchange: Exchange, attempt: Attempt) -> None:
        given = await attempt.request.json()
        sampling = {"max_new_tokens": given["max_tokens"], "sampling_seed": given["seed"], "ignore_eos": True}
        body = {"input_ids": IDS, "sampling_params": sampling, "return_logprob": True}
        attempt.request.path = b"/generate"
        attempt.request.set_body(json.dumps(body).encode())


class Behind:
    """The plugin under a name of the test, so that it can stand behind another class of the test.

    No subclass: compiled, the plugin has none.
    """

    name = "behind"
    Settings = PartialRollout.Settings
    around_upstream = PartialRollout.around_upstream
    """A hook, by which it is known for a plugin."""

    def __new__(cls, settings: Any) -> Any:
        return PartialRollout(settings)

    def __init__(self, settings: Any) -> None: ...


async def test_a_chat_turn_that_is_asked_for_with_ids_is_continued_below_who_captures_it() -> None:
    async with (
        running_engine(step_delay_s=0.005, max_cached_tokens=0) as served,
        running_router(
            [served.url],
            enabled=["weight_version", "least_inflight"],
            plugins={"weight_version": {"version_path": ""}, "behind": {"when": "always"}},
            classes=[ChatAsGenerate, Behind],
        ) as router,
    ):
        ask = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 30, "seed": 3}
        whole = (await exchange_once(router.port, target="/v1/chat/completions", json=ask)).json()
        asked = asyncio.create_task(exchange_once(router.port, target="/v1/chat/completions", json=ask))
        async with asyncio.timeout(10):
            for _ in range(2):
                while not any(len(each.output_ids) > 2 for each in served.engine.unfinished()):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                served.engine.abort_all()
        told = (await asked).json()
        assert told["choices"] == whole["choices"]
        assert len(told["told"]["meta_info"]["segments"]) == 3


async def test_a_first_attempt_that_is_tried_elsewhere_does_not_keep_its_worker_out_of_the_rest() -> None:
    async with (
        running_engine(max_cached_tokens=0) as served,
        ScriptedWorker() as refusing,
        running_router(
            [refusing.url, served.url],
            enabled=["partial_rollout", "retry", "round_robin"],
            plugins={"partial_rollout": {"when": "always"}},
        ) as router,
    ):
        refusing.refuse()
        body = {"input_ids": IDS, "sampling_params": {"max_new_tokens": 40, "sampling_seed": 1, "ignore_eos": True}}
        whole = (await exchange_once(router.port, json=body)).json()
        asked = asyncio.create_task(exchange_once(router.port, json=body))
        async with asyncio.timeout(10):
            while not any(each.output_ids for each in served.engine.unfinished()):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        served.engine.abort_all()
        assert (await asked).json()["output_ids"] == whole["output_ids"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_a_captured_chat_turn_is_committed_whole(dialect: str, stream: bool) -> None:
    async with running_engine(dialect=dialect, step_delay_s=0.005, max_cached_tokens=0) as served:
        tokenizer = str(served.engine.tokenizer.directory)
        async with running_router(
            [served.url],
            enabled=["hf_tokenizer", "tito", "partial_rollout", "least_inflight"],
            plugins={
                "hf_tokenizer": {"path": tokenizer},
                "tito": {"mode": "translate"},
                "partial_rollout": {"when": "always"},
            },
        ) as router:

            async def turn(session: str) -> dict[str, Any]:
                await exchange_once(router.port, target="/sessions", json={"session_id": session})
                body = {
                    "model": "reference",
                    "messages": [{"role": "user", "content": "hi"}],
                    "max_tokens": 40,
                    "seed": 5,
                    "temperature": 1.0,
                    "stream": stream,
                }
                answer = await exchange_once(router.port, target=f"/sessions/{session}/v1/chat/completions", json=body)
                assert answer.status == 200, answer.body
                assert answer.clean
                assert answer.get("x-router-untrainable") is None
                told = await exchange_once(router.port, target=f"/sessions/{session}/samples", json={})
                assert told.status == 200, told.body
                samples: dict[str, Any] = told.json()
                return samples

            whole = await turn("whole")
            asked = asyncio.create_task(turn("joined"))
            for _ in range(2):
                async with asyncio.timeout(10):
                    while not any(len(each.output_ids) > 3 for each in served.engine.unfinished()):  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
                served.engine.abort_all()
            joined = await asked
            assert whole["samples"]
            assert "router_partial_rollout_joined_total 1" in router.application.outside.metrics()
            for key in ("tokens", "loss_mask"):
                assert [row[key] for row in joined["samples"]] == [row[key] for row in whole["samples"]]
            assert all(row["complete"] for row in joined["samples"]), joined
