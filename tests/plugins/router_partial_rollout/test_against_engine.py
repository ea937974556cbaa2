"""Aborted at random tokens, by an engine whose sampling knows seed and position: nothing of that is seen."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
import pybase64
import pytest

from router_core.reference_engine import running_engine
from router_core.testing import RawAnswer, exchange_once
from router_core.testing.router import RunningRouter, running_router

PROMPT = [5, 6, 7, 8, 9, 10, 11]
ENABLED = ["engine_control", "partial_rollout", "weight_version", "least_inflight"]
WITH_TOKENIZER = ["hf_tokenizer", *ENABLED]
TIRELESS = {"when": "always", "max_dispatches": 1000, "max_idle_dispatches": 1000}
ROW = (4, 2)
"""Layers and top_k of the reference engine's model."""


@asynccontextmanager
async def pool(
    count: int = 2, *, dialect: str = "sglang", delay_s: float = 0.0, enabled: list[str] | None = None, **settings: Any
) -> AsyncIterator[tuple[RunningRouter, list[Any]]]:
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(
                running_engine(dialect=dialect, weight_version="0", step_delay_s=delay_s, max_cached_tokens=0)
            )
            for _ in range(count)
        ]
        router = await stack.enter_async_context(
            running_router(
                [engine.url for engine in engines],
                enabled=enabled or ENABLED,
                plugins={
                    "partial_rollout": settings,
                    "weight_version": {"version_path": ""},
                    "hf_tokenizer": {"path": str(engines[0].engine.tokenizer.directory)},
                },
            )
        )
        yield router, engines


def generate(seed: int, tokens: int, *, stream: bool = False, **sampling: Any) -> dict[str, Any]:
    return {
        "input_ids": [*PROMPT, 20 + seed % 200],
        "sampling_params": {"max_new_tokens": tokens, "sampling_seed": seed, "ignore_eos": True, **sampling},
        "return_logprob": True,
        "return_routed_experts": True,
        "stream": stream,
    }


def completion(seed: int, tokens: int, *, stream: bool = False, **more: Any) -> dict[str, Any]:
    return {
        "model": "reference",
        "prompt": [*PROMPT, 20 + seed % 200],
        "max_tokens": tokens,
        "seed": seed,
        "ignore_eos": True,
        "logprobs": 1,
        "return_token_ids": True,
        "stream": stream,
        **more,
    }


def events(answer: RawAnswer) -> list[dict[str, Any]]:
    assert answer.clean, answer.body[-200:]
    assert answer.body.endswith(b"data: [DONE]\n\n"), answer.body[-200:]
    lines = [line[6:] for line in answer.body.split(b"\n\n") if line.startswith(b"data: ")]
    assert lines.count(b"[DONE]") == 1
    return [json.loads(line) for line in lines[:-1]]


def rows(meta: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(pybase64.b64decode(meta["routed_experts"]), "<i4").reshape(-1, *ROW)


async def aborting(engines: list[Any], over: asyncio.Event, draw: random.Random) -> int:
    """Aborts everything that runs, again and again; each time under a new version. Returns how often."""
    count = 0
    while not over.is_set():
        for _ in range(draw.randrange(1, 40)):
            await asyncio.sleep(0)
        engine = draw.choice(engines).engine
        count += engine.abort_all()
        engine.weight_version = str(int(engine.weight_version) + 1)
    return count


async def test_a_joined_answer_is_the_uninterrupted_one() -> None:
    draw = random.Random(1)
    async with pool(**TIRELESS) as (router, engines):
        asks = [generate(seed, draw.randrange(1, 60)) for seed in range(40)]
        told = [await exchange_once(router.port, json=ask) for ask in asks]
        whole = [answer.json() for answer in told]
        over = asyncio.Event()
        aborts = asyncio.create_task(aborting(engines, over, draw))
        answers = await asyncio.gather(*(exchange_once(router.port, json=ask) for ask in asks))
        over.set()
        assert await aborts > 0
    joined = 0
    for ask, raw, expected in zip(asks, answers, whole, strict=True):
        assert raw.status == 200, raw.body
        answer = raw.json()
        check(ask, answer, expected)
        joined += len(answer["meta_info"].get("segments", [])) > 1
    assert joined > 5


def check(ask: dict[str, Any], answer: dict[str, Any], expected: dict[str, Any]) -> None:
    meta, due = answer["meta_info"], expected["meta_info"]
    assert answer["output_ids"] == expected["output_ids"]
    assert answer["text"] == expected["text"]
    assert meta["finish_reason"] == due["finish_reason"]
    assert [entry[1] for entry in meta["output_token_logprobs"]] == answer["output_ids"]
    told, wanted = ([entry[0] for entry in each["output_token_logprobs"]] for each in (meta, due))
    assert told == pytest.approx(wanted, abs=1e-4)
    for key in ("prompt_tokens", "completion_tokens", "output_token_logprobs_length"):
        assert meta[key] == due[key]
    experts, right = rows(meta), rows(due)
    assert len(experts) == len(ask["input_ids"]) + len(answer["output_ids"]) - 1
    assert (experts == right).mean() > 0.99  # a router's tie may break otherwise in another batch
    if "segments" in meta:
        ends = [0, *(segment["end"] for segment in meta["segments"])]
        assert [segment["start"] for segment in meta["segments"]] == ends[:-1]
        assert ends[-1] == len(answer["output_ids"])


async def test_a_joined_stream_is_the_uninterrupted_one() -> None:
    draw = random.Random(2)
    async with pool(**TIRELESS) as (router, engines):
        asks = [generate(seed, draw.randrange(1, 60), stream=True) for seed in range(30)]
        whole = [events(await exchange_once(router.port, json=ask))[-1] for ask in asks]
        over = asyncio.Event()
        aborts = asyncio.create_task(aborting(engines, over, draw))
        answers = await asyncio.gather(*(exchange_once(router.port, json=ask) for ask in asks))
        over.set()
        assert await aborts > 0
    joined = 0
    for ask, raw, expected in zip(asks, answers, whole, strict=True):
        told = events(raw)
        check(ask, told[-1], expected)
        joined += len(told[-1]["meta_info"].get("segments", [])) > 1
        for earlier, later in itertools.pairwise(told):
            assert later["text"].startswith(earlier["text"].rstrip("\ufffd"))
            assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
            assert earlier["meta_info"]["finish_reason"] is None
            assert earlier["meta_info"]["completion_tokens"] == len(earlier["output_ids"])
            assert earlier["meta_info"]["prompt_tokens"] == len(ask["input_ids"])
    assert joined > 5


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_a_joined_completion_is_the_uninterrupted_one(dialect: str) -> None:
    draw = random.Random(3)
    async with pool(dialect=dialect, enabled=WITH_TOKENIZER, **TIRELESS) as (router, engines):
        asks = [completion(seed, draw.randrange(1, 60)) for seed in range(30)]
        whole = [(await complete(router, ask)).json() for ask in asks]
        over = asyncio.Event()
        aborts = asyncio.create_task(aborting(engines, over, draw))
        answers = await asyncio.gather(*(complete(router, ask) for ask in asks))
        over.set()
        assert await aborts > 0
    joined = 0
    for raw, expected in zip(answers, whole, strict=True):
        answer = raw.json()
        choice, due = answer["choices"][0], expected["choices"][0]
        for key in ("token_ids", "text", "finish_reason", "prompt_token_ids"):
            assert choice[key] == due[key]
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert answer["usage"][key] == expected["usage"][key]
        logprobs, wanted = choice["logprobs"], due["logprobs"]
        assert logprobs["tokens"] == wanted["tokens"]
        assert logprobs["text_offset"] == wanted["text_offset"]
        assert logprobs["token_logprobs"] == pytest.approx(wanted["token_logprobs"], abs=1e-4)
        if dialect == "vllm":
            experts = np.load(io.BytesIO(pybase64.b64decode(choice["routed_experts"])))
            assert experts.shape == (len(choice["prompt_token_ids"]) + len(choice["token_ids"]) - 1, *ROW)
        joined += len((answer.get("metadata") or {}).get("segments", [])) > 1
    assert joined > 5


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
@pytest.mark.parametrize("asks_ids", [True, False])
async def test_a_joined_stream_of_a_completion_is_the_uninterrupted_one(dialect: str, asks_ids: bool) -> None:
    draw = random.Random(4)
    more: dict[str, Any] = {"stream_options": {"include_usage": True}}
    async with pool(dialect=dialect, enabled=WITH_TOKENIZER, **TIRELESS) as (router, engines):
        asks = [completion(seed, draw.randrange(1, 60), stream=True, **more) for seed in range(20)]
        if not asks_ids:
            asks = [{key: value for key, value in ask.items() if key != "return_token_ids"} for ask in asks]
        whole = [of_deltas(events(await complete(router, ask))) for ask in asks]
        over = asyncio.Event()
        aborts = asyncio.create_task(aborting(engines, over, draw))
        answers = await asyncio.gather(*(complete(router, ask) for ask in asks))
        over.set()
        assert await aborts > 0
    joined = 0
    for raw, expected in zip(answers, whole, strict=True):
        told = of_deltas(events(raw))
        segments = told.pop("segments")
        joined += len(segments) > 1
        expected.pop("segments")
        assert told.pop("logprobs") == pytest.approx(expected.pop("logprobs"), abs=1e-4)
        assert told == expected
        assert bool(told["token_ids"]) is asks_ids
    assert joined > 3


async def complete(router: RunningRouter, ask: dict[str, Any]) -> RawAnswer:
    return await exchange_once(router.port, target="/v1/completions", json=ask)


def of_deltas(told: list[dict[str, Any]]) -> dict[str, Any]:
    """A streamed completion as one."""
    assert len({event["id"] for event in told}) == 1
    choices = [event["choices"][0] for event in told if event["choices"]]
    logprobs = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
    usage = told[-1]["usage"]
    segments = [event["metadata"]["segments"] for event in told if (event.get("metadata") or {}).get("segments")]
    assert all(choice.get("finish_reason") is None for choice in choices[:-1])
    return {
        "text": "".join(choice["text"] for choice in choices),
        "token_ids": [token for choice in choices for token in choice.get("token_ids") or ()],
        "prompt_token_ids": [choice["prompt_token_ids"] for choice in choices if choice.get("prompt_token_ids")],
        "finish_reason": choices[-1]["finish_reason"],
        "tokens": [token for each in logprobs for token in each["tokens"]],
        "offsets": [at for each in logprobs for at in each["text_offset"]],
        "logprobs": [value for each in logprobs for value in each["token_logprobs"]],
        "usage": {key: usage[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")},
        "segments": segments[0] if segments else [],
    }
