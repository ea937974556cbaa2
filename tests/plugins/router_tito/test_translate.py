"""Chat put to workers as ids: the agent sees chat, the trace holds what the engine said."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import openai
import orjson
import pytest
from capture_kit import Capturing, captured_worker, events, reference_tokenizer, said
from router_tito.render import NO_CONTEXT
from test_capture_engine import CALL, DIALECTS, START, TOOLS, WORDS, ask, engine_behind, judge, sdk
from tito_kit import tool, user

from router_core.testing import ScriptedWorker, reply, reply_pieces

PATHS = {"sglang": "/generate", "vllm": "/v1/completions"}
REASONING = {"sglang": "reasoning_content", "vllm": "reasoning"}


def calls(worker: ScriptedWorker) -> list[dict[str, Any]]:
    """The bodies of the calls that generated."""
    return [request.json() for request in worker.requests if request.path in PATHS.values()]


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """What a message says, without the ids of its calls and the white space around its texts."""
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    return {"content": (message.get("content") or "").strip(), "reasoning": reasoning.strip(), "calls": functions}


async def play(dialect: str, mode: str, *, stream: bool) -> tuple[list[dict[str, Any]], list[Any]]:
    """The scripted session in one mode: the agent's messages, and the turns of the one branch."""
    async with engine_behind(dialect, *WORDS, mode=mode) as (engine, made), sdk(made) as client:
        messages: list[Any] = list(START)
        called = await ask(client, messages, stream=stream, tools=TOOLS)
        messages += [called, tool("a.txt", called["tool_calls"][0]["id"])]
        messages += [await ask(client, messages, stream=stream, tools=TOOLS), user("And now?")]
        messages += [await ask(client, messages, stream=stream, tools=TOOLS)]
        (branch,) = made.branches()
        assert made.trace().drift == {} and made.trace().uncaptured == {} and branch.is_complete
        assert all(later.is_exact_extension_of(earlier) for earlier, later in pairwise(branch.transitions))
        await judge(engine, dialect, made)
        stored = [plain(dict(node.message)) for node in branch.nodes if node.is_sampled]
        told = [plain(message) for message in messages if message["role"] == "assistant"]
        assert stored == told
        return told, list(branch.transitions)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_translated_and_injected_turns_are_the_same(dialect: str, stream: bool) -> None:
    injected, there = await play(dialect, "inject", stream=stream)
    translated, here = await play(dialect, "translate", stream=stream)
    assert translated == injected
    assert [list(view.prompt_ids) for view in here] == [list(view.prompt_ids) for view in there]
    assert [list(view.completion_ids) for view in here] == [list(view.completion_ids) for view in there]
    for mine, theirs in zip(here, there, strict=True):
        assert list(mine.logprobs) == pytest.approx(list(theirs.logprobs), abs=1e-6)
        assert mine.finish_reason == theirs.finish_reason


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_what_the_model_chooses_itself_is_kept_exactly(dialect: str, stream: bool) -> None:
    async with engine_behind(dialect, mode="translate") as (engine, made), sdk(made) as client:
        messages: list[Any] = list(START)
        for number in range(3):
            answer = await ask(client, messages, stream=stream, max_tokens=12, temperature=1.0, seed=number, top_p=0.9)
            messages += [answer, user(f"and {number}?")]
        assert sum(len(branch.transitions) for branch in made.branches()) >= 3
        assert made.trace().drift == {} and made.trace().uncaptured == {}
        assert {view.finish_reason for branch in made.branches() for view in branch.transitions} <= {"length", "stop"}
        if dialect == "sglang" or not stream:
            await judge(engine, dialect, made)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_turn_in_chat_form_has_usage_and_logprobs_as_asked(dialect: str) -> None:
    words = "<think>\nhm\n</think>\n\nSure 🙂.<|im_end|>"
    ids = reference_tokenizer().encode(words)
    async with engine_behind(dialect, words, words, mode="translate") as (_, made):
        asked = {"logprobs": True, "top_logprobs": 2, "model": "reference"}
        whole = (await made.chat(START, **asked)).json()
        choice = whole["choices"][0]
        assert whole["object"] == "chat.completion" and choice["finish_reason"] == "stop"
        assert choice["message"] == {
            "role": "assistant",
            "content": "\n\nSure 🙂.",
            REASONING[dialect]: "\nhm\n",
        }
        assert whole["usage"]["completion_tokens"] == len(ids)
        entries = choice["logprobs"]["content"]
        assert len(entries) == len(ids) and all(len(entry["top_logprobs"]) == 2 for entry in entries)
        assert all(a["logprob"] >= b["logprob"] for a, b in (entry["top_logprobs"] for entry in entries))
        assert entries[0]["token"] == "<think>" and entries[-1]["token"] == "<|im_end|>"
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        answer = await made.chat(START, **asked, **usage)
        chunks = events(answer)
        assert said(answer)["content"] == "\n\nSure 🙂."
        told = [
            entry for chunk in chunks for c in chunk["choices"] for entry in (c["logprobs"] or {}).get("content", ())
        ]
        assert [entry["logprob"] for entry in told] == pytest.approx([entry["logprob"] for entry in entries], abs=1e-6)
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == len(ids)
        assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"]][-1] == "stop"


async def test_text_streams_before_the_answer_has_ended() -> None:
    async with captured_worker(mode="translate") as (worker, made):
        worker.say("one two three four five six seven eight", hold_after=3)
        async with sdk(made) as client:
            stream = await client.chat.completions.create(model="m", messages=START, stream=True)
            seen = ""
            async for chunk in stream:
                seen += chunk.choices[0].delta.content or ""
                if "one" in seen:
                    break
            assert "one" in seen and not made.branches()
            worker.release()
            async for chunk in stream:
                seen += chunk.choices[0].delta.content or ""
        assert seen == "one two three four five six seven eight"
        assert len(made.branches()) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_each_field_goes_under_the_calls_own_name(dialect: str) -> None:
    async with captured_worker(dialect, mode="translate") as (worker, made):
        worker.say("ok")
        await made.chat(
            START,
            temperature=0.5,
            top_p=0.9,
            top_k=7,
            min_p=0.1,
            stop=["END"],
            seed=3,
            frequency_penalty=0.2,
            max_completion_tokens=9,
            user="me",
            n=1,
            tool_choice="auto",
            response_format={"type": "json_object"},
        )
        (body,) = calls(worker)
        named = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "stop": ["END"], "frequency_penalty": 0.2}
        if dialect == "sglang":
            assert body.keys() == {"input_ids", "sampling_params", "return_logprob", "return_prompt_token_ids"}
            assert body["sampling_params"] == {
                **named,
                "sampling_seed": 3,
                "max_new_tokens": 9,
                "skip_special_tokens": False,
                "json_schema": '{"type": "object"}',
            }
        else:
            own = {"seed": 3, "max_tokens": 9, "skip_special_tokens": False, "response_format": {"type": "json_object"}}
            assert {key: body[key] for key in (*named, *own)} == {**named, **own}
            assert body["logprobs"] == 0 and body["return_token_ids"] is True and body["model"] == "m"
            assert "messages" not in body and "user" not in body


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "ls"}}),
        ("parallel_tool_calls", False),
        ("response_format", {"type": "grammar"}),
        ("web_search_options", {}),
        ("return_meta_info", True),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_field_without_a_counterpart_is_refused_by_name(dialect: str, field: str, value: Any) -> None:
    async with captured_worker(dialect, mode="translate") as (worker, made):
        answer = await made.chat(START, **{field: value})
        assert answer.status == 400
        assert answer.json()["error"]["param"] == field and answer.json()["error"]["code"] == "not_translatable"
        assert calls(worker) == []


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_answer_without_a_limit_may_fill_the_context(dialect: str) -> None:
    async with engine_behind(dialect, WORDS[1], mode="translate") as (_, made):
        assert (await made.chat(START, model="reference")).status == 200
    async with captured_worker(dialect, mode="translate", default_max_tokens=77) as (worker, made):
        worker.say("ok")
        await made.chat(START)
        (body,) = calls(worker)
        assert (body["sampling_params"]["max_new_tokens"] if dialect == "sglang" else body["max_tokens"]) == 77


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_control_tokens_are_no_text_unless_the_client_wants_them(dialect: str, stream: bool) -> None:
    words = "<think>\n\n</think>\n\na<|im_start|>b<|im_end|>"
    async with engine_behind(dialect, words, words, mode="translate") as (_, made):
        answer = await made.chat(START, model="reference", stream=stream)
        assert said(answer)["content"] == "\n\nab"
        answer = await made.chat(START, model="reference", stream=stream, skip_special_tokens=False)
        assert said(answer)["content"] == "\n\na<|im_start|>b"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_broken_call_stays_content_and_is_trained_on(dialect: str, stream: bool) -> None:
    broken = CALL.replace('"arguments"', "arguments")
    async with engine_behind(dialect, f"Hm.\n{broken}<|im_end|>", mode="translate") as (_, made):
        answer = await made.chat(START, model="reference", stream=stream, tools=TOOLS)
        assert said(answer)["content"] == f"Hm.\n{broken}" and "tool_calls" not in said(answer)
        (branch,) = made.branches()
        assert branch.transitions[0].finish_reason == "stop"


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_routed_experts_and_versions_come_along(dialect: str) -> None:
    settings = {"routed_experts": True, "experts_shape": (4, 2), "mode": "translate"}
    async with engine_behind(dialect, *WORDS, **settings) as (_, made), sdk(made) as client:
        messages: list[Any] = list(START)
        for _ in range(2):
            messages += [await ask(client, messages, stream=dialect == "sglang"), user("go on")]
        (branch,) = made.branches()
        rows = branch.routed_experts
        assert branch.reasons == [] and rows is not None
        assert rows.shape == (len(branch.token_ids) - 1, 4, 2)
        if dialect == "sglang":
            assert all(view.facts.weight_versions for view in branch.transitions)


async def test_ids_that_the_client_asked_for_are_in_its_answer() -> None:
    async with engine_behind("vllm", *WORDS, mode="translate") as (_, made):
        whole = (await made.chat(START, model="reference", return_token_ids=True)).json()
        assert whole["choices"][0]["token_ids"] == reference_tokenizer().encode(WORDS[0])
        assert whole["prompt_token_ids"] == list(made.branches()[0].transitions[0].prompt_ids)
    async with engine_behind("sglang", *WORDS, mode="translate") as (_, made):
        answer = await made.chat(START, stream=True, return_output_ids_in_sglext=True)
        (told,) = [chunk["sglext"] for chunk in events(answer) if "sglext" in chunk]
        assert told == {"output_ids": [reference_tokenizer().encode(WORDS[0])]}


@pytest.mark.parametrize("stream", [False, True])
async def test_media_are_left_to_the_workers_chat_call(stream: bool) -> None:
    async with captured_worker(mode="translate") as (worker, made):
        worker.say("a cat")
        picture = [{"type": "image_url", "image_url": {"url": "data:,x"}}]
        answer = await made.chat([{"role": "user", "content": picture}], stream=stream)
        assert said(answer)["content"] == "a cat" and calls(worker) == []


async def test_the_sdk_sees_a_refusal_as_a_bad_request() -> None:
    async with captured_worker(mode="translate") as (_, made), sdk(made) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="m", messages=START, tools=TOOLS, tool_choice="required")
        assert refused.value.param == "tool_choice"


def ending(*events: dict[str, Any], is_done: bool = True) -> Any:
    """A handler whose calls for ids are answered by these events; the rest is the worker's own."""
    pieces = [b"data: " + orjson.dumps(event) + b"\n\n" for event in events] + [b"data: [DONE]\n\n"] * is_done
    return reply_pieces(pieces)


def event(ids: Sequence[int], text: str, prompt_tokens: int, finish: dict[str, Any] | None = None, **more: Any) -> Any:
    meta = {
        "id": "r",
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(ids),
        "finish_reason": finish,
        "output_token_logprobs": [[-0.5, token_id, None] for token_id in ids],
        "output_token_logprobs_length": len(ids),
    }
    return {"text": text, "output_ids": list(ids), "meta_info": {**meta, **more}}


STOP = {"type": "stop", "matched": 5}


def prompt_tokens(made: Capturing) -> int:
    """How long the prompt of ``START`` is."""
    text = made.tito.capture.renderers.ready.renderer.template.render  # type: ignore[union-attr]
    return len(made.door.tokenizer.encode(text(START, NO_CONTEXT, generation_prompt=True)))


@pytest.mark.parametrize(
    ("events", "reasons", "turns"),
    [
        ([([1], "a", None), ([1, 5], "a", STOP)], {}, 1),
        ([([1], "a", None), ([1, 2], "ab", {"type": "abort", "message": "gone"})], {}, 0),
        ([([1], "a", None)], {}, 0),
        ([([1], "caf\ufffd", None), ([1, 2], "caf\u00e9", None), ([1, 2, 5], "caf\u00e9", STOP)], {}, 1),
        ([([1], "a", None, {"output_token_logprobs": None}), ([1, 5], "a", STOP)], {}, 1),
        ([([1], "a", None), ([1, 5], "a", STOP, {"output_token_logprobs": None})], {"logprobs_missing": 1}, 0),
        ([([1, 5], "a", STOP, {"prompt_tokens": 3})], {"prompt_ids_missing": 1}, 0),
    ],
)
async def test_a_stream_is_kept_only_if_all_of_it_came(
    events: list[tuple[Any, ...]], reasons: dict[str, int], turns: int
) -> None:
    async with captured_worker(mode="translate", worker_kind="sglang") as (worker, made):
        await made.tito.capture.renderers.get()
        length = prompt_tokens(made)
        told = [
            event(e[0], e[1], **{"prompt_tokens": length, "finish": e[2], **(e[3] if len(e) > 3 else {})})
            for e in events
        ]
        worker.handler = ending(*told)
        answer = await made.chat(START, stream=True)
        assert said(answer)["content"].startswith(events[-1][1][:1])
        if events[-1][2] == STOP and len(events) == 3:
            assert said(answer)["content"] == "caf\u00e9"
        assert made.trace().uncaptured == reasons
        assert sum(len(branch.transitions) for branch in made.branches()) == turns


async def test_a_server_that_streams_increments_is_read_as_well() -> None:
    async with captured_worker(mode="translate", worker_kind="sglang") as (worker, made):
        await made.tito.capture.renderers.get()
        length = prompt_tokens(made)
        worker.handler = ending(
            event([1], "a", length),
            event([2], "b", length, completion_tokens=2),
            event([5], "", length, STOP, completion_tokens=3),
        )
        assert said(await made.chat(START, stream=True))["content"] == "ab"
        assert list(made.branches()[0].transitions[0].completion_ids) == [1, 2, 5]


async def test_an_error_within_a_stream_reaches_the_client_and_nothing_is_kept() -> None:
    async with captured_worker(mode="translate", worker_kind="sglang") as (worker, made):
        await made.tito.capture.renderers.get()
        worker.handler = ending(
            event([1], "a", prompt_tokens(made)), {"error": {"message": "out of memory"}}, is_done=False
        )
        answer = await made.chat(START, stream=True)
        assert b"out of memory" in answer.body and b"[DONE]" not in answer.body
        assert made.branches() == [] and made.trace().uncaptured == {}


async def test_an_answer_that_is_no_answer_passes_and_is_marked() -> None:
    async with captured_worker(mode="translate", worker_kind="sglang") as (worker, made):
        worker.handler = reply(b"[1, 2]")
        answer = await made.chat(START)
        assert answer.body == b"[1, 2]" and answer.get("x-router-untrainable") == "unreadable_answer"
