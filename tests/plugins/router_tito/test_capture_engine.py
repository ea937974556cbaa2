"""A real model behind the router, and the openai SDK in front: the trace holds what the engine computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import openai
import pytest
from capture_kit import Capturing, captured_worker, capturing, reference_tokenizer, until
from tito_kit import system, tool, user

from router_core.reference_engine import running_engine
from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import exchange_once
from router_core.testing.router import running_router

DIALECTS = ["sglang", "vllm"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "ls",
            "description": "List a directory",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]
START = [system("You are terse."), user("List the files.")]
CALL = '<tool_call>\n{"name": "ls", "arguments": {"path": "/tmp"}}\n</tool_call>'
WORDS = [
    f"<think>\nlook\n</think>\n\nSure.\n{CALL}<|im_end|>",
    "<think>\nI see\n</think>\n\ntwo files<|im_end|>",
    "<think>\nagain\n</think>\n\nsame<|im_end|>",
]


@asynccontextmanager
async def engine_behind(dialect: str, *words: str, **settings: Any) -> AsyncIterator[tuple[Any, Capturing]]:
    """An engine that says these words one after another, then what its model chooses; session ``s`` is open."""
    script = iter([reference_tokenizer().encode(text) for text in words])
    async with (
        running_engine(dialect=dialect, script=lambda prompt: next(script, None), seed=1) as engine,
        capturing(engine.url, tokenizer=reference_tokenizer(), **settings) as made,
    ):
        await made.open()
        yield engine, made


def sdk(made: Capturing, session_id: str = "s", **options: Any) -> openai.AsyncOpenAI:
    url = f"http://127.0.0.1:{made.port}/sessions/{session_id}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key="k", **{"max_retries": 0, **options})


async def ask(client: openai.AsyncOpenAI, messages: list[Any], *, stream: bool, **options: Any) -> dict[str, Any]:
    """One turn with the SDK; the message as an agent would send it back."""
    options = {"model": "reference", "messages": messages, **options}
    if not stream:
        answer = await client.chat.completions.create(**options)
        return answer.choices[0].message.model_dump(exclude_none=True)
    content, thought, calls = "", "", {}
    async for chunk in await client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            extra = choice.delta.model_extra or {}
            thought += extra.get("reasoning_content") or extra.get("reasoning") or ""
            for part in choice.delta.tool_calls or ():
                known = calls.setdefault(part.index, {"id": part.id, "type": "function", "function": {"arguments": ""}})
                if part.function and part.function.name:
                    known["function"]["name"] = part.function.name
                known["function"]["arguments"] += (part.function and part.function.arguments) or ""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thought:
        message["reasoning_content"] = thought
    return {**message, "tool_calls": list(calls.values())} if calls else message


async def judge(engine: Any, dialect: str, made: Capturing) -> None:
    """Each call of each branch, put to the engine again as bare ids: it gives every sampled token the kept logprob."""
    for branch in made.branches():
        for view in branch.transitions:
            whole = [*view.prompt_ids, *view.completion_ids]
            start = len(view.prompt_ids)
            if dialect == "sglang":
                body = {
                    "input_ids": whole,
                    "return_logprob": True,
                    "logprob_start_len": start - 1,
                    "sampling_params": {"max_new_tokens": 1},
                }
                answer = (await exchange_once(engine.port, target="/generate", json=body)).json()
                told = [entry[0] for entry in answer["meta_info"]["input_token_logprobs"]][-len(view.completion_ids) :]
            else:
                body = {"prompt": whole, "max_tokens": 1, "prompt_logprobs": 0, "model": "reference"}
                answer = (await exchange_once(engine.port, target="/v1/completions", json=body)).json()
                entries = answer["choices"][0]["prompt_logprobs"][start:]
                told = [entry[str(token)]["logprob"] for entry, token in zip(entries, view.completion_ids, strict=True)]
            assert told == pytest.approx(list(view.logprobs), abs=1e-5)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_tool_session_by_the_sdk_is_one_sequence_with_the_engines_own_logprobs(
    dialect: str, stream: bool
) -> None:
    async with engine_behind(dialect, *WORDS) as (engine, made), sdk(made) as client:
        messages: list[Any] = list(START)
        called = await ask(client, messages, stream=stream, tools=TOOLS)
        messages += [called, tool("a.txt", called["tool_calls"][0]["id"])]
        messages += [await ask(client, messages, stream=stream, tools=TOOLS), user("And now?")]
        await ask(client, messages, stream=stream, tools=TOOLS)
        (branch,) = made.branches()
        assert [list(view.completion_ids) for view in branch.transitions] == [
            reference_tokenizer().encode(text) for text in WORDS
        ]
        assert all(later.is_exact_extension_of(earlier) for earlier, later in pairwise(branch.transitions))
        assert [view.facts.how for view in branch.transitions] == ["render", "bridge", "bridge"]
        assert made.trace().drift == {} and branch.is_complete
        await judge(engine, dialect, made)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_what_the_model_chooses_itself_is_kept_exactly(dialect: str) -> None:
    async with engine_behind(dialect) as (engine, made), sdk(made) as client:
        messages: list[Any] = list(START)
        for number in range(4):
            answer = await ask(client, messages, stream=bool(number % 2), max_tokens=12, temperature=1.0)
            messages += [answer, user(f"and {number}?")]
        assert sum(len(branch.transitions) for branch in made.branches()) >= 4
        assert made.trace().drift == {} and made.trace().uncaptured == {}
        await judge(engine, dialect, made)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_observed_prompts_are_the_engines_and_drift_is_measured(dialect: str) -> None:
    async with engine_behind(dialect, *WORDS, mode="observe") as (engine, made), sdk(made) as client:
        await made.tito.capture.renderers.get()
        messages: list[Any] = list(START)
        called = await ask(client, messages, stream=False, tools=TOOLS)
        messages += [called, tool("a.txt", called["tool_calls"][0]["id"])]
        messages += [await ask(client, messages, stream=True, tools=TOOLS), user("And now?")]
        await ask(client, messages, stream=False, tools=TOOLS)
        await made.settle()
        # The template drops the thoughts before the new question: the engine's prompt is another one from there on.
        assert made.trace().drift == {"template": 1}
        assert [len(branch.transitions) for branch in made.branches()] == [2, 1]
        await judge(engine, dialect, made)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_routed_experts_come_from_the_engine(dialect: str) -> None:
    settings = {"routed_experts": True, "experts_shape": (4, 2)}
    async with engine_behind(dialect, *WORDS, **settings) as (_, made), sdk(made) as client:
        messages: list[Any] = list(START)
        for _ in range(2):
            messages += [await ask(client, messages, stream=False), user("go on")]
        (branch,) = made.branches()
        rows = branch.routed_experts
        assert branch.reasons == [] and rows is not None
        assert rows.shape == (len(branch.token_ids) - 1, 4, 2) and int(rows.max()) < 8


async def test_the_sdk_reads_a_limit_as_a_context_that_is_full() -> None:
    async with engine_behind("sglang", *WORDS) as (_, made):
        await made.open("short", max_turns=1)
        async with sdk(made, "short") as client:
            await ask(client, START, stream=False)
            with pytest.raises(openai.BadRequestError) as stopped:
                await ask(client, START, stream=False)
            assert stopped.value.code == "context_length_exceeded"
            assert stopped.value.type == "invalid_request_error" and stopped.value.param == "max_turns"


async def test_the_sdks_own_retry_after_its_timeout_is_given_the_first_calls_answer() -> None:
    async with captured_worker() as (worker, made):
        worker.say("two files", hold_after=0)
        async with sdk(made, timeout=0.2, max_retries=5) as client:
            asked = asyncio.create_task(client.chat.completions.create(model="m", messages=START))
            await until(lambda: made.tito.capture.counts.coalesced >= 1)
            worker.release()
            answer = await asked
        assert answer.choices[0].message.content == "two files"
        await made.settle()
        assert len([request for request in worker.requests if request.method == "POST"]) == 1
        (branch,) = made.branches()
        assert branch.nodes[-1].is_delivered is True


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_tokenizer_plugin_and_capture_work_together(dialect: str) -> None:
    script = iter([reference_tokenizer().encode(text) for text in WORDS])
    settings = {"hf_tokenizer": {"path": str(ASSETS)}}
    async with (
        running_engine(dialect=dialect, script=lambda prompt: next(script, None)) as engine,
        running_router([engine.url], enabled=["hf_tokenizer", "tito"], plugins=settings) as router,
    ):
        base_url = f"http://127.0.0.1:{router.port}"
        await exchange_once(router.port, target="/sessions", json={"session_id": "s"})
        async with openai.AsyncOpenAI(base_url=f"{base_url}/sessions/s/v1", api_key="k", max_retries=0) as client:
            messages: list[Any] = list(START)
            for number in range(3):
                messages += [await ask(client, messages, stream=bool(number)), user(f"and {number}?")]
        shown = (await exchange_once(router.port, "GET", "/sessions/s")).json()
        (trajectory,) = shown["trajectories"]
        assert [record["how"] for record in trajectory["records"]] == ["render", "bridge", "bridge"]
        assert trajectory["is_complete"] is True
        told = (await exchange_once(router.port, "GET", "/sessions/capabilities")).json()
        assert told["tokenizer"]["is_ready"] is True
