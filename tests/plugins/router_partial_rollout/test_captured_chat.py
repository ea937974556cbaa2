"""Captured chat whose worker parses it: aborted anywhere, it is the uninterrupted turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from router_core.reference_engine import running_engine
from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import RawAnswer, exchange_once
from router_core.testing.router import RunningRouter, running_router

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "the sky", "n": [1, 2]}}\n</tool_call>'
SAID = {
    "thinking and a call": f"<think>\nso it is\n</think>\n\nWell, é and 世界.\n{CALL}",
    "two calls": f"<think>a</think>{CALL}\n{CALL}",
    "content": "Nothing but words, and a few more of them.",
}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


class Dictated:
    """The engine says these ids, and goes on in them where a prompt ends with their beginning."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def __call__(self, prompt: Sequence[int]) -> list[int]:
        for length in range(len(self.ids), 0, -1):
            if list(prompt[-length:]) == self.ids[:length]:
                return self.ids[length:]
        return self.ids


class Setup:
    def __init__(self, served: Any, router: RunningRouter, dictated: Dictated) -> None:
        self.engine = served.engine
        self.url = served.url
        self.router = router
        self.dictated = dictated

    def dictate(self, text: str) -> int:
        self.dictated.ids = [*self.engine.tokenizer.encode(text), self.engine.tokenizer.eos_id]
        return len(self.dictated.ids)

    async def turn(self, session: str, *, stream: bool, **more: Any) -> dict[str, Any]:
        await exchange_once(self.router.port, target="/sessions", json={"session_id": session})
        body = {
            "model": "reference",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": TOOLS,
            "max_tokens": 200,
            "seed": 5,
            "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
            **more,
        }
        answer = await exchange_once(
            self.router.port, target=f"/sessions/{session}/v1/chat/completions", json=body, timeout_s=40
        )
        assert answer.status == 200, answer.body
        assert answer.get("x-router-untrainable") is None
        told = of_stream(answer) if stream else of_whole(answer)
        samples = await exchange_once(self.router.port, target=f"/sessions/{session}/samples", json={})
        told["samples"] = samples.json()["samples"] if samples.status == 200 else []
        return told

    async def aborted(self, session: str, at: Sequence[int], *, stream: bool, **more: Any) -> dict[str, Any]:
        """A turn that is aborted each time that so many tokens of the newest dispatch are there."""
        asked = asyncio.create_task(self.turn(session, stream=stream, **more))
        for count in at:
            await self.until_made(count, asked)
            await self.update()
        return await asked

    async def call(self, target: str, body: Any = None) -> None:
        assert (await exchange_once(self.router.port, target=target, json=body)).status == 200

    async def update(self) -> None:
        """Aborts what runs, and goes on with another weight version."""
        await self.call("/routing/pause?wait=true")
        self.engine.abort_all()
        self.engine.weight_version = str(int(self.engine.weight_version) + 1)
        await self.call(
            "/workers/update_weight_version", [{"worker_id": self.url, "weight_version": self.engine.weight_version}]
        )
        await self.call("/routing/resume")

    async def until_made(self, count: int, asked: asyncio.Task[Any]) -> None:
        async with asyncio.timeout(10):
            while not any(len(each.output_ids) >= count for each in self.engine.unfinished()):
                assert not asked.done(), asked.result()
                await asyncio.sleep(0.001)


@asynccontextmanager
async def setup(
    dialect: str, *, mode: str = "inject", when: str = "window", experts: bool = True, **options: Any
) -> AsyncIterator[Setup]:
    dictated = Dictated()
    engine = {"dialect": dialect, "step_delay_s": 0.002, "max_cached_tokens": 0, "weight_version": "0", **options}
    async with (
        running_engine(script=dictated, **engine) as served,
        running_router(
            [served.url],
            enabled=["hf_tokenizer", "engine_control", "tito", "partial_rollout", "weight_version", "least_inflight"],
            plugins={
                "hf_tokenizer": {"path": str(ASSETS)},
                "tito": {"mode": mode, "routed_experts": experts, "experts_shape": [4, 2]},
                "partial_rollout": {"when": when},
                "weight_version": {"version_path": ""},
            },
        ) as router,
    ):
        run = Setup(served, router, dictated)
        await run.update()
        yield run


def of_whole(answer: RawAnswer) -> dict[str, Any]:
    told = answer.json()
    (choice,) = told["choices"]
    return {
        "message": plain(choice["message"]),
        "finish_reason": choice["finish_reason"],
        "usage": counted(told["usage"]),
        "logprobs": choice.get("logprobs"),
    }


def of_stream(answer: RawAnswer) -> dict[str, Any]:
    assert answer.clean, answer.body[-300:]
    assert answer.body.endswith(b"data: [DONE]\n\n"), answer.body[-300:]
    events = [json.loads(line[6:]) for line in answer.body.split(b"\n\n") if line.startswith(b"data: {")]
    assert not any("error" in event for event in events), events[-1]
    assert len({event["id"] for event in events}) == 1
    assert len({event["created"] for event in events}) == 1
    message: dict[str, Any] = {}
    ends, roles, content = [], 0, []
    for choice in (choice for event in events for choice in event["choices"]):
        delta = choice["delta"]
        roles += "role" in delta and delta["role"] is not None
        for key in ("content", "reasoning_content", "reasoning"):
            message[key] = message.get(key, "") + (delta.get(key) or "")
        for call in delta.get("tool_calls") or ():
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append({"function": {"name": "", "arguments": ""}})
            for key, value in call["function"].items():
                calls[call["index"]]["function"][key] += value or ""
        if choice.get("finish_reason"):
            ends.append(choice["finish_reason"])
        content += (choice.get("logprobs") or {}).get("content", [])
    assert roles == 1
    (end,) = ends
    usage = [counted(event["usage"]) for event in events if event.get("usage")]
    return {
        "message": plain(message),
        "finish_reason": end,
        "usage": usage[-1],
        "logprobs": {"content": content} if content else None,
    }


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """What a message says; white space around a text is nobody's word."""
    calls = message.get("tool_calls") or []
    return {
        "content": (message.get("content") or "").strip(),
        "reasoning": (message.get("reasoning_content") or message.get("reasoning") or "").strip(),
        "calls": [(call["function"]["name"], call["function"]["arguments"]) for call in calls],
    }


def counted(usage: dict[str, Any]) -> list[int]:
    return [usage[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")]


def check(told: dict[str, Any], whole: dict[str, Any]) -> None:
    for key in ("message", "finish_reason", "usage"):
        assert told[key] == whole[key]
    (row,), (due,) = told["samples"], whole["samples"]
    for key in ("tokens", "loss_mask", "reasons", "complete"):
        assert row[key] == due[key], key
    assert row["complete"]
    assert row["logprobs"] == pytest.approx(due["logprobs"], abs=1e-4)
    if due["routed_experts"] is not None:
        experts, right = (np.array(each["routed_experts"]) for each in (row, due))
        assert experts.shape == right.shape == (len(row["tokens"]) - 1, 4, 2)
        assert (experts == right).mean() > 0.99  # a router's tie may break otherwise in another batch


def versions(told: dict[str, Any]) -> list[tuple[str | None, int]]:
    (row,) = told["samples"]
    return [(span["version"], span["end"] - span["start"]) for span in row["weight_versions"]]


@pytest.mark.parametrize("text", SAID)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_a_turn_that_is_aborted_anywhere_is_the_uninterrupted_one(dialect: str, stream: bool, text: str) -> None:
    async with setup(dialect, experts=dialect == "sglang" or not stream) as run:
        count = run.dictate(SAID[text])
        whole = await run.turn("whole", stream=stream)
        continued = 0
        places = range(4, count - 4, 13)
        for at in places:
            told = await run.aborted(f"s{at}", [at], stream=stream)
            check(told, whole)
            continued += len(versions(told)) == 2
        assert continued >= len(places) - 2  # a turn may have ended before its worker was aborted


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_a_turn_may_be_aborted_again_and_again(dialect: str, stream: bool) -> None:
    async with setup(dialect, experts=dialect == "sglang" or not stream, step_delay_s=0.005) as run:
        run.dictate(SAID["two calls"])
        whole = await run.turn("whole", stream=stream, logprobs=True)
        told = await run.aborted("joined", [5, 6, 7, 8], stream=stream, logprobs=True)
        check(told, whole)
        assert len(versions(told)) == 5
        ours, due = (
            [(entry["token"], entry["logprob"]) for entry in each["logprobs"]["content"]] for each in (told, whole)
        )
        assert [token for token, _ in ours] == [token for token, _ in due]
        assert [value for _, value in ours] == pytest.approx([value for _, value in due], abs=1e-4)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("parses", [True, False])
async def test_the_rest_is_parsed_as_the_worker_parses(stream: bool, parses: bool) -> None:
    parsers = {"reasoning_parser": parses, "tool_call_parser": parses}
    async with setup("sglang", step_delay_s=0.005, **parsers) as run:
        run.dictate(SAID["thinking and a call"])
        whole = await run.turn("whole", stream=stream)
        assert bool(whole["message"]["calls"]) is bool(whole["message"]["reasoning"]) is parses
        told = await run.aborted("joined", [1, 15], stream=stream)
        check(told, whole)
        assert len(versions(told)) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_an_abort_before_the_first_token_is_not_seen(stream: bool) -> None:
    async with setup("sglang", step_delay_s=0.02) as run:
        run.dictate(SAID["content"])
        whole = await run.turn("whole", stream=stream)
        told = await run.aborted("joined", [0, 3], stream=stream)
        check(told, whole)
        assert "router_partial_rollout_continued_total 2" in run.router.application.outside.metrics()


async def test_where_the_worker_does_not_say_how_it_parses_an_abort_before_it_was_seen_is_the_end() -> None:
    async with setup("vllm", when="always", step_delay_s=0.1) as run:
        run.dictate(SAID["two calls"])  # begins with <think>, which a worker without a parser would show
        asked = asyncio.create_task(run.turn("s", stream=False))
        await run.until_made(1, asked)
        run.engine.abort_all()
        told = await asked
        assert told["finish_reason"] == "abort"
        assert told["samples"] == []


@pytest.mark.parametrize(
    "more",
    [
        {"logprobs": True, "top_logprobs": 2},
        {"tools": [{**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}]},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_where_the_rest_would_not_be_exact_the_abort_is_the_end_and_nothing_is_committed(
    stream: bool, more: dict[str, Any]
) -> None:
    async with setup("sglang", step_delay_s=0.005) as run:
        run.dictate(SAID["content"])
        told = await run.aborted("joined", [4], stream=stream, **more)
        assert told["finish_reason"] == "abort"
        assert told["message"]["reasoning"].startswith("Nothing")
        assert told["samples"] == []
        assert 'final_aborts_total{reason="cannot_be_continued"} 1' in run.router.application.outside.metrics()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_abort_that_is_asked_for_between_two_workers_ends_the_turn_with_what_there_is(stream: bool) -> None:
    async with setup("sglang", step_delay_s=0.005) as run:
        run.dictate(SAID["content"])
        asked = asyncio.create_task(run.turn("s", stream=stream, rid="r"))
        await run.until_made(5, asked)
        await run.call("/routing/pause?wait=true")
        run.engine.abort_all()
        async with asyncio.timeout(10):
            while len(run.router.application.holds) < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await exchange_once(run.router.port, target="/abort_request", json={"rid": "r"})
        await run.call("/routing/resume")
        told = await asked
        assert told["finish_reason"] == "abort"
        assert SAID["content"].startswith(told["message"]["reasoning"])
        assert told["message"]["reasoning"]
        assert told["samples"] == []
