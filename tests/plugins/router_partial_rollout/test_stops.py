"""Stop texts that begin before an abort and end after it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from router_partial_rollout.text import split_stops

from router_core.reference_engine import running_engine
from router_core.testing import RawAnswer, exchange_once
from router_core.testing.router import RunningRouter, running_router

PROMPT = [5, 6, 7]
WORDS = "Ünï </an x swer> and </answer> never"
"""The first ``</an`` is no beginning of a stop, and the first ``swer>`` no end of one."""


@asynccontextmanager
async def pool(dialect: str = "sglang") -> AsyncIterator[tuple[RunningRouter, Any]]:
    words: list[int] = []

    def script(prompt_ids: Sequence[int]) -> Sequence[int]:
        return words[len(prompt_ids) - len(PROMPT) :]

    async with running_engine(dialect=dialect, script=script, step_delay_s=0.005, max_cached_tokens=0) as served:
        words += served.engine.tokenizer.encode(WORDS)
        async with running_router(
            [served.url],
            enabled=["hf_tokenizer", "partial_rollout"],
            plugins={
                "partial_rollout": {"when": "always"},
                "hf_tokenizer": {"path": str(served.engine.tokenizer.directory)},
            },
        ) as router:
            yield router, served.engine


def test_what_completes_a_stop_is_found() -> None:
    assert split_stops("so </ans", ["</answer>", "never"]) == ["wer>"]
    assert split_stops("aa", ["aaab"]) == ["aab", "ab"]
    assert split_stops("so", ["</answer>"]) == []
    assert split_stops("x<", ["<a", "a"]) == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("target", ["/generate", "/v1/completions"])
async def test_a_stop_that_is_split_ends_the_answer_where_it_would_have(target: str, keeps: bool, stream: bool) -> None:
    stops = ["</answer>"]
    if target == "/generate":
        sampling = {"max_new_tokens": 60, "stop": stops, "no_stop_trim": keeps}
        ask: dict[str, Any] = {"input_ids": PROMPT, "sampling_params": sampling, "stream": stream}
    else:
        ask = {"prompt": PROMPT, "max_tokens": 60, "stop": stops, "return_token_ids": True, "stream": stream}
        ask["include_stop_str_in_output"] = keeps
    async with pool("sglang" if target == "/generate" else "vllm") as (router, engine):
        whole = told(await exchange_once(router.port, target=target, json=ask))
        assert whole["text"] == WORDS[: WORDS.index("</answer>") + (len("</answer>") if keeps else 0)]
        for abort_at in range(2, len(whole["ids"])):
            asked = asyncio.create_task(exchange_once(router.port, target=target, json=ask))
            async with asyncio.timeout(10):
                while not any(len(each.output_ids) >= abort_at for each in engine.unfinished()):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            engine.abort_all()
            assert told(await asked) == whole


def told(answer: RawAnswer) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    if not answer.body.startswith(b"data: "):
        return of_whole(answer.json())
    events = [json.loads(line[6:]) for line in answer.body.split(b"\n\n") if line.startswith(b"data: {")]
    if "meta_info" in events[-1]:
        return of_whole(events[-1])
    choices = [event["choices"][0] for event in events if event["choices"]]
    joined = {
        **choices[-1],
        "text": "".join(choice["text"] for choice in choices),
        "token_ids": [token for choice in choices for token in choice.get("token_ids") or ()],
    }
    return of_whole({"choices": [joined]})


def of_whole(answer: dict[str, Any]) -> dict[str, Any]:
    if "meta_info" in answer:
        reason = answer["meta_info"]["finish_reason"]
        return {"text": answer["text"], "ids": answer["output_ids"], "reason": reason}
    choice = answer["choices"][0]
    reason = {"type": choice["finish_reason"], "matched": choice["stop_reason"]}
    return {"text": choice["text"], "ids": choice["token_ids"], "reason": reason}
