"""Aborted at random tokens, by an engine whose sampling knows seed and position: nothing of that is seen."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import random
from collections.abc import AsyncIterator, Callable
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
                    "routed_experts": {"layers": ROW[0], "top_k": ROW[1]},
                },
            )
        )
        yield router, engines


def generate(seed: int, tokens: int, *, stream: bool = False, **sampling: Any) -> dict[str, Any]:
    return {
        "rid": f"r{seed}-",
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


async def until(is_true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110 - neither engine nor router sets an event for tests
            await asyncio.sleep(0.001)


class Aborter:
    """Aborts everything that runs, again and again, and gives the worker a new version each time."""

    def __init__(self, engines: list[Any], draw: random.Random) -> None:
        self.truth: dict[str, list[tuple[int, str, str]]] = {}
        """rid -> (tokens made, version, worker) of each dispatch that was aborted with a token."""
        self._engines = engines
        self._draw = draw
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Aborter:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            for _ in range(self._draw.randrange(1, 40)):
                await asyncio.sleep(0)
            self._abort(self._draw.choice(self._engines))

    def _abort(self, served: Any) -> None:
        engine = served.engine
        for generation in engine.unfinished():
            made = (len(generation.output_ids), engine.weight_version, served.url)
            self.truth.setdefault(generation.request.rid, []).append(made)
        engine.abort_all()
        engine.weight_version = str(int(engine.weight_version) + 1)

    def segments(self, rid: str) -> list[tuple[int, str, str]]:
        return [made for made in self.truth.get(rid, ()) if made[0]]


async def test_a_joined_answer_is_the_uninterrupted_one() -> None:
    draw = random.Random(1)
    async with pool(**TIRELESS) as (router, engines):
        asks = [generate(seed, draw.randrange(1, 60)) for seed in range(30)]
        told = [await exchange_once(router.port, json=ask) for ask in asks]
        whole = [answer.json() for answer in told]
        async with Aborter(engines, draw) as aborter:
            answers = await asyncio.gather(*(exchange_once(router.port, json=ask) for ask in asks))
        assert aborter.truth
    joined = 0
    for ask, raw, expected in zip(asks, answers, whole, strict=True):
        assert raw.status == 200, raw.body
        answer = raw.json()
        check(ask, answer, expected, aborter)
        joined += len(answer["meta_info"].get("segments", [])) > 1
    assert joined


def check(ask: dict[str, Any], answer: dict[str, Any], expected: dict[str, Any], aborter: Aborter) -> None:
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
    truth = aborter.segments(ask["rid"])
    segments = meta.get("segments", [])
    assert len(segments) == (len(truth) + 1 if truth else 0)
    ends = [0, *(segment["end"] for segment in segments)]
    assert [segment["start"] for segment in segments] == ends[:-1]
    assert not segments or ends[-1] == len(answer["output_ids"])
    told = [(each["end"] - each["start"], each["weight_version"], each["worker"]) for each in segments[:-1]]
    assert told == truth
    spans = [(span["version"], span["start"], span["end"]) for span in meta["weight_versions"]]
    versions = [version for version, start, end in spans for _ in range(start, end)]
    by_segment = [each["weight_version"] for each in segments for _ in range(each["start"], each["end"])]
    assert not segments or versions == by_segment


async def test_a_joined_stream_is_the_uninterrupted_one() -> None:
    draw = random.Random(2)
    async with pool(**TIRELESS) as (router, engines):
        asks = [generate(seed, draw.randrange(1, 60), stream=True) for seed in range(20)]
        whole = [events(await exchange_once(router.port, json=ask))[-1] for ask in asks]
        async with Aborter(engines, draw) as aborter:
            answers = await asyncio.gather(*(exchange_once(router.port, json=ask) for ask in asks))
        assert aborter.truth
    joined = 0
    for ask, raw, expected in zip(asks, answers, whole, strict=True):
        told = events(raw)
        check(ask, told[-1], expected, aborter)
        joined += len(told[-1]["meta_info"].get("segments", [])) > 1
        for earlier, later in itertools.pairwise(told):
            assert later["text"].startswith(earlier["text"].rstrip("\ufffd"))
            assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
            assert earlier["meta_info"]["finish_reason"] is None
            assert earlier["meta_info"]["completion_tokens"] == len(earlier["output_ids"])
            assert earlier["meta_info"]["prompt_tokens"] == len(ask["input_ids"])
    assert joined


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_a_joined_completion_is_the_uninterrupted_one(dialect: str) -> None:
    draw = random.Random(3)
    async with pool(dialect=dialect, enabled=WITH_TOKENIZER, **TIRELESS) as (router, engines):
        asks = [completion(seed, draw.randrange(1, 60)) for seed in range(15)]
        whole = [(await complete(router, ask)).json() for ask in asks]
        async with Aborter(engines, draw) as aborter:
            answers = await asyncio.gather(*(complete(router, ask) for ask in asks))
        assert aborter.truth
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
    assert joined


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
@pytest.mark.parametrize("asks_ids", [True, False])
async def test_a_joined_stream_of_a_completion_is_the_uninterrupted_one(dialect: str, asks_ids: bool) -> None:
    draw = random.Random(4)
    more: dict[str, Any] = {"stream_options": {"include_usage": True}}
    async with pool(dialect=dialect, enabled=WITH_TOKENIZER, **TIRELESS) as (router, engines):
        asks = [completion(seed, draw.randrange(1, 60), stream=True, **more) for seed in range(10)]
        if not asks_ids:
            asks = [{key: value for key, value in ask.items() if key != "return_token_ids"} for ask in asks]
        whole = [of_deltas(events(await complete(router, ask))) for ask in asks]
        async with Aborter(engines, draw) as aborter:
            answers = await asyncio.gather(*(complete(router, ask) for ask in asks))
        assert aborter.truth
    joined = 0
    for raw, expected in zip(answers, whole, strict=True):
        told = of_deltas(events(raw))
        segments = told.pop("segments")
        joined += len(segments) > 1
        expected.pop("segments")
        assert told.pop("logprobs") == pytest.approx(expected.pop("logprobs"), abs=1e-4)
        assert told == expected
        assert bool(told["token_ids"]) is asks_ids
    assert joined


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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_versions_of_earlier_segments_are_not_taken_for_the_workers(dialect: str, stream: bool) -> None:
    async with pool(1, dialect=dialect, delay_s=0.01, enabled=WITH_TOKENIZER) as (router, [served]):
        engine, worker = served.engine, next(iter(router.application.workers))

        async def call(target: str, body: Any = None) -> None:
            assert (await exchange_once(router.port, target=target, json=body)).status == 200

        await call("/workers/update_weight_version", [{"worker_id": served.url, "weight_version": "0"}])
        asked = asyncio.create_task(complete(router, completion(1, 30, stream=stream)))
        for version in ("1", "2"):
            await until(lambda: any(generation.output_ids for generation in engine.unfinished()))
            await call("/routing/pause?wait=true")
            engine.abort_all()
            await until(lambda: len(router.application.holds) == 1)
            engine.weight_version = version
            await call("/workers/update_weight_version", [{"worker_id": served.url, "weight_version": version}])
            await call("/routing/resume")
        answer = await asked
        told = [event for event in events(answer) if event.get("metadata")][-1] if stream else answer.json()
        assert [segment["weight_version"] for segment in told["metadata"]["segments"]] == ["0", "1", "2"]
        assert (worker.weight_version, worker.pending_weight_version) == ("2", None)


@pytest.mark.parametrize("stream", [False, True])
async def test_plugins_outside_of_it_see_one_answer(stream: bool) -> None:
    enabled = ["hf_tokenizer", "engine_control", "radix_cache", "routed_experts", *ENABLED[1:]]
    draw = random.Random(5)
    async with pool(enabled=enabled, **TIRELESS) as (router, engines):
        asks = [generate(seed, 30, stream=stream) for seed in range(6)]
        whole = [await exchange_once(router.port, json={**ask, "rid": "w" + ask["rid"]}) for ask in asks]
        async with Aborter(engines, draw) as aborter:
            answers = await asyncio.gather(*(exchange_once(router.port, json=ask) for ask in asks))
        assert aborter.truth
        for ask, raw, expected in zip(asks, answers, whole, strict=True):
            told, due = (events(each)[-1] if stream else each.json() for each in (raw, expected))
            assert told["output_ids"] == due["output_ids"]
            kept = [
                await exchange_once(router.port, "GET", f"/routed_experts/{rid}")
                for rid in (ask["rid"], "w" + ask["rid"])
            ]
            joined, right = (np.load(io.BytesIO(each.body)) for each in kept)
            assert joined.shape == right.shape == (len(ask["input_ids"]) + len(told["output_ids"]) - 1, *ROW)
            assert (joined == right).mean() > 0.99
