"""vLLM renders, generates from ids and parses: the agent sees its chat, the trace the exact ids."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import openai
import pytest
from capture_kit import captured_worker, events, said, trained_tokenizer
from render_kit import DERENDER, GENERATE, LIMIT, RENDER, RenderingVllm
from test_capture_engine import START, TOOLS, ask, sdk
from tito_kit import tool, user

CALL = '<tool_call>\n{"name": "ls", "arguments": {"path": "/tmp"}}\n</tool_call>'
WORDS = [
    f"<think>\nlook\n</think>\n\n{CALL}<|im_end|>",
    "<think>\nI see\n</think>\n\ntwo files<|im_end|>",
    "ok<|im_end|>",
]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_session_by_the_sdk_is_one_sequence(stream: bool) -> None:
    async with captured_worker("vllm", mode="render") as (worker, made), sdk(made) as client:
        vllm = RenderingVllm(worker, WORDS)
        messages: list[Any] = list(START)
        called = await ask(client, messages, stream=stream, tools=TOOLS)
        assert called["tool_calls"][0]["function"] == {"name": "ls", "arguments": '{"path": "/tmp"}'}
        messages += [called, tool("a.txt", called["tool_calls"][0]["id"])]
        answered = await ask(client, messages, stream=stream, tools=TOOLS)
        assert answered["content"].strip() == "two files"  # without the token that ended it
        messages += [answered, user("And now?")]
        await ask(client, messages, stream=stream, tools=TOOLS)
        (branch,) = made.branches()
        views = branch.transitions
        assert [list(view.completion_ids) for view in views] == [trained_tokenizer().encode(text) for text in WORDS]
        assert all(later.is_exact_extension_of(earlier) for earlier, later in pairwise(views))
        assert [view.facts.how for view in views] == ["render", "bridge", "bridge"]
        assert [view.finish_reason for view in views] == ["tool_calls", "stop", "stop"]
        assert all(view.logprobs[0] == -0.5 for view in views)
        assert all(span[0] == "v3" for view in views for span in view.facts.weight_versions)
        assert made.trace().drift == {} and made.trace().uncaptured == {} and branch.is_complete
        assert [list(body["token_ids"]) for body in vllm.bodies(GENERATE)] == [list(view.prompt_ids) for view in views]
        # Nobody said a length: it is the room behind the ids that were really given.
        lengths = [body["sampling_params"]["max_tokens"] for body in vllm.bodies(GENERATE)]
        assert lengths == [LIMIT - len(view.prompt_ids) for view in views]


async def test_a_prompt_that_begins_anew_is_the_workers_rendering_and_drift_is_told() -> None:
    async with captured_worker("vllm", mode="render") as (worker, made):
        vllm = RenderingVllm(worker, [WORDS[1]])
        own, kept = trained_tokenizer().encode("<|im_start|>assistant\n"), vllm._render
        vllm._render = lambda body: {**kept(body), "token_ids": own}  # type: ignore[method-assign]
        await made.chat(START)
        await made.settle()
        (branch,) = made.branches()
        assert list(branch.transitions[0].prompt_ids) == own
        assert sum(made.trace().drift.values()) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_and_ids_are_told_as_asked(stream: bool) -> None:
    async with captured_worker("vllm", mode="render") as (worker, made):
        RenderingVllm(worker, WORDS[1:])
        asked = {"return_token_ids": True, "max_tokens": 50, "logprobs": True}
        ids = trained_tokenizer().encode(WORDS[1])
        if not stream:
            answer = (await made.chat(START, **asked)).json()
            assert answer["choices"][0]["token_ids"] == ids
            usage = answer["usage"]
        else:
            told = await made.chat(START, stream=True, stream_options={"include_usage": True}, **asked)
            chunks = events(told)
            shown = [token for chunk in chunks for choice in chunk["choices"] for token in choice["token_ids"] or ()]
            entries = [
                entry for chunk in chunks for choice in chunk["choices"] for entry in choice["logprobs"]["content"]
            ]
            assert [entry["logprob"] for entry in entries] == list(made.branches()[0].transitions[0].logprobs)
            assert "".join(entry["token"] for entry in entries) == WORDS[1]
            assert shown == ids and said(told)["content"].strip() == "two files"
            usage = chunks[-1]["usage"]
        assert usage["completion_tokens"] == len(ids) and usage["prompt_tokens_details"] == {"cached_tokens": 7}
        answer = await made.chat(START)
        assert "token_ids" not in answer.json()["choices"][0] or answer.json()["choices"][0]["token_ids"] is None


@pytest.mark.parametrize("stream", [False, True])
async def test_the_token_that_ends_an_answer_is_shown_to_those_who_ask_for_it(stream: bool) -> None:
    async with captured_worker("vllm", mode="render") as (worker, made):
        vllm = RenderingVllm(worker, WORDS[2:] * 2)
        ids = trained_tokenizer().encode(WORDS[2])
        for asked, shown in (({}, ids[:-1]), ({"include_stop_str_in_output": True}, ids)):
            await made.chat(START, stream=stream, **asked)
            pieces = [
                (body.get("generate_chunk") or body.get("generate_response"))["choices"][0]["token_ids"]
                for body in vllm.bodies(DERENDER)
            ]
            assert [token for piece in pieces for token in piece] == shown
            vllm.calls.clear()
        assert all(list(branch.transitions[0].completion_ids) == ids for branch in made.branches())


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_the_worker_does_not_parse_is_marked(stream: bool) -> None:
    async with captured_worker("vllm", mode="render") as (worker, made):
        RenderingVllm(worker, WORDS).derenders = False
        answer = await made.chat(START, stream=stream)
        assert answer.status == 200
        assert made.trace().uncaptured == {"derender_failed": 1} and made.branches() == []
        if stream:
            assert b'"code":"derender_failed"' in answer.body and b"[DONE]" not in answer.body
        else:
            assert answer.get("x-router-untrainable") == "derender_failed"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_aborted_answer_is_continued_from_its_ids_and_parsed_whole(stream: bool) -> None:
    enabled = ("tito", "partial_rollout", "least_inflight")
    more = {"stream_options": {"include_usage": True}} if stream else {}
    async with captured_worker("vllm", mode="render", enabled=enabled) as (worker, made):
        vllm = RenderingVllm(worker, WORDS)
        ids = trained_tokenizer().encode(WORDS[0])
        vllm.cuts = [3, len(ids) - 8]
        headers = {"x-partial-rollout": "true"}
        told = await made.chat(START, stream=stream, tools=TOOLS, headers=headers, return_token_ids=True, **more)
        (branch,) = made.branches()
        (view,) = branch.transitions
        assert list(view.completion_ids) == ids
        assert len(view.logprobs) == len(ids)
        assert view.finish_reason == "tool_calls"
        assert view.facts.weight_versions == (("v3", 0, 3), ("v3", 3, len(ids) - 5), ("v3", len(ids) - 5, len(ids)))
        asked = [list(body["token_ids"]) for body in vllm.bodies(GENERATE)]
        prompt = list(view.prompt_ids)
        assert asked == [prompt, [*prompt, *ids[:3]], [*prompt, *ids[: len(ids) - 5]]]
        lengths = [body["sampling_params"]["max_tokens"] for body in vllm.bodies(GENERATE)]
        assert lengths == [LIMIT - len(prompt) - made_before for made_before in (0, 3, len(ids) - 5)]
        if stream:
            chunks = events(told)
            assert len({chunk["id"] for chunk in chunks}) == 1
            choices = [choice for chunk in chunks for choice in chunk["choices"]]
            assert [token for choice in choices for token in choice["token_ids"] or ()] == ids
            assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]
            message, usage = said(told), chunks[-1]["usage"]
        else:
            message, usage = told.json()["choices"][0]["message"], told.json()["usage"]
        assert message["reasoning"].strip() == "look"
        assert message["tool_calls"][0]["function"] == {"name": "ls", "arguments": '{"path": "/tmp"}'}
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(prompt), len(ids))


async def test_a_worker_without_the_routes_is_named() -> None:
    async with captured_worker("vllm", mode="render") as (worker, made):
        answer = await made.chat(START)
        assert answer.status == 501 and "--enable-scale-out" in answer.json()["error"]["message"]
        assert all(request.path != GENERATE for request in worker.requests)
    async with captured_worker("sglang", mode="render") as (_, made):
        answer = await made.chat(START)
        assert answer.status == 501 and answer.json()["error"]["code"] == "unsupported_mode"


async def test_the_workers_own_refusal_reaches_the_client() -> None:
    async with captured_worker("vllm", mode="render") as (worker, made), sdk(made) as client:
        vllm = RenderingVllm(worker, [])

        async def refuse(request: Any, connection: Any) -> bool:
            if request.path == RENDER:
                error = b'{"error":{"message":"max_tokens is too big","type":"BadRequestError","param":"max_tokens"}}'
                return await connection.answer(error, 400, ())
            return await vllm.answer(request, connection)

        worker.handler = refuse
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="m", messages=START, max_tokens=9999)
        assert refused.value.param == "max_tokens" and "too big" in str(refused.value)
        assert vllm.bodies(DERENDER) == []
