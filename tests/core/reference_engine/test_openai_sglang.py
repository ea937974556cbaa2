"""OpenAI's routes in SGLang's dialect; shapes are those of a real server."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI

from router_core.reference_engine.recompute import recompute

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the capital of France?"}]
RENDERED = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
    "<|im_start|>assistant\n"
)
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
CHAT = "/v1/chat/completions"


def says(text: str) -> dict[str, str]:
    """Return the header that makes the model say ``text``."""
    return {"x-reference-script": json.dumps(text)}


async def chat(client: Any, said: str = "<think>\nhmm\n</think>\n\nParis.", **body: Any) -> Any:
    status, answer = await client.post(CHAT, {"model": "any", "messages": MESSAGES} | body, says(said))
    assert status == 200, answer
    return answer


async def test_an_answer_has_the_shape_of_sglang(client: Any) -> None:
    tokenizer = client.engine.tokenizer
    answer = await chat(client)
    words = tokenizer.encode("<think>\nhmm\n</think>\n\nParis.")
    prompt = len(tokenizer.encode(RENDERED))
    thinking = len(tokenizer.encode("\nhmm\n"))
    created = answer.pop("created")
    assert isinstance(created, int)
    assert len(answer.pop("id")) == 32
    assert answer == {
        "object": "chat.completion",
        "model": "any",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "\n\nParis.", "reasoning_content": "\nhmm\n"},
                "logprobs": None,
                "finish_reason": "stop",
                "matched_stop": tokenizer.eos_id,
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "total_tokens": prompt + len(words) + 1,
            "completion_tokens": len(words) + 1,
            "prompt_tokens_details": None,
            "reasoning_tokens": thinking,
            "completion_tokens_details": {"reasoning_tokens": thinking},
        },
        "metadata": {
            "weight_version": "default",
            "weight_versions": [{"version": "default", "start": 0, "end": len(words) + 1}],
        },
    }


async def test_ids_logprobs_and_experts_are_told_where_asked(client: Any, decode_experts: Any) -> None:
    answer = await chat(
        client,
        logprobs=True,
        top_logprobs=2,
        return_token_ids=True,
        return_meta_info=True,
        return_routed_experts=True,
        return_input_ids_in_sglext=True,
        return_output_ids_in_sglext=True,
    )
    choice, tokenizer = answer["choices"][0], client.engine.tokenizer
    prompt, output = choice["prompt_token_ids"], choice["response_token_ids"]
    assert prompt == tokenizer.encode(RENDERED)
    assert answer["sglext"] == {"input_ids": prompt, "output_ids": [output]}
    meta = choice["meta_info"]
    truth = recompute(client.engine.model, prompt + output[:-1])
    rows = truth.logprobs[len(prompt) - 1 :]
    expected = [float(np.float32(row[token])) for row, token in zip(rows, output, strict=True)]
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == expected
    texts = [tokenizer.decode([token], skip_special_tokens=False) for token in output]
    assert meta["output_token_logprobs"] == [list(item) for item in zip(expected, output, texts, strict=True)]
    first = choice["logprobs"]["content"][1]
    assert list(first) == ["token", "bytes", "logprob", "top_logprobs"]
    assert bytes(first["bytes"]) == tokenizer.token_bytes(output[1:2])
    assert len(first["top_logprobs"]) == 2
    assert np.array_equal(decode_experts(meta["routed_experts"]), truth.experts)
    assert meta["reasoning_tokens"] == answer["usage"]["reasoning_tokens"]


async def test_experts_are_in_sglext_without_meta_info(client: Any, decode_experts: Any) -> None:
    answer = await chat(
        client, return_routed_experts=True, routed_experts_start_len=5, return_output_ids_in_sglext=True
    )
    ids = client.engine.tokenizer.encode(RENDERED) + answer["sglext"]["output_ids"][0]
    experts = decode_experts(answer["sglext"]["routed_experts"])
    assert np.array_equal(experts, recompute(client.engine.model, ids[:-1]).experts[5:])


async def test_given_ids_are_the_prompt(client: Any) -> None:
    answer = await chat(client, input_ids=[5, 6, 7], return_prompt_token_ids=True)
    assert answer["choices"][0]["prompt_token_ids"] == [5, 6, 7]
    status, error = await client.post(CHAT, {"messages": [], "input_ids": [5]})
    assert (status, error["message"]) == (400, "Messages cannot be empty.")
    status, error = await client.post(CHAT, {"messages": MESSAGES, "input_ids": [5000]})
    assert status == 400
    assert "outside the vocabulary" in error["message"]


async def test_tool_calls_are_parsed_when_there_are_tools(client: Any) -> None:
    said = "<think>\nhmm\n</think>\n\nI look.\n" + CALL + "\n" + CALL
    choice = (await chat(client, said, tools=[TOOL]))["choices"][0]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("tool_calls", None)
    assert choice["message"]["content"] == "I look."
    calls = choice["message"]["tool_calls"]
    assert [call["index"] for call in calls] == [0, 1]
    assert calls[0]["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}
    assert calls[0]["id"].startswith("call_")
    untouched = (await chat(client, said))["choices"][0]
    assert untouched["finish_reason"] == "stop"
    assert CALL in untouched["message"]["content"]


async def test_parsers_can_be_switched_off(serving: Any) -> None:
    said = "<think>\nhmm\n</think>\n\n" + CALL
    async with serving(reasoning_parser=False, tool_call_parser=False) as client:
        choice = (await chat(client, said, tools=[TOOL]))["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": said, "reasoning_content": None}
        assert choice["finish_reason"] == "stop"


async def test_a_request_can_keep_or_forbid_thinking(client: Any) -> None:
    whole = await chat(client, separate_reasoning=False)
    assert whole["choices"][0]["message"]["content"] == "<think>\nhmm\n</think>\n\nParis."
    body = {"chat_template_kwargs": {"enable_thinking": False}, "return_prompt_token_ids": True}
    plain = (await chat(client, "Paris.", **body))["choices"][0]
    assert plain["message"] == {"role": "assistant", "content": "Paris.", "reasoning_content": None}
    prompt = client.engine.tokenizer.decode(plain["prompt_token_ids"], skip_special_tokens=False)
    assert prompt == RENDERED + "<think>\n\n</think>\n\n"


def merged(chunks: list[Any]) -> tuple[str, str]:
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return tuple("".join(delta.get(key) or "" for delta in deltas) for key in ("reasoning_content", "content"))  # type: ignore[return-value]


async def test_a_stream_adds_up_to_the_answer(client: Any) -> None:
    body = {
        "messages": MESSAGES,
        "stream": True,
        "logprobs": True,
        "stream_options": {"include_usage": True},
        "return_routed_experts": True,
        "return_input_ids_in_sglext": True,
        "return_output_ids_in_sglext": True,
    }
    said = "<think>\nhmm 🚀\n</think>\n\nParis. Ça va?"
    chunks = await client.events(CHAT, body, says(said))
    whole = await chat(client, said, return_routed_experts=True, return_output_ids_in_sglext=True, logprobs=True)
    message = whole["choices"][0]["message"]
    assert merged(chunks) == (message["reasoning_content"], message["content"])
    assert chunks[0]["choices"][0]["delta"] == {"reasoning_content": None, "role": "assistant", "content": ""}
    entries = [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]
    assert entries == whole["choices"][0]["logprobs"]["content"]
    end, extra, usage = chunks[-3:]
    assert end["choices"][0]["finish_reason"] == "stop"
    assert end["choices"][0]["matched_stop"] == client.engine.tokenizer.eos_id
    assert extra["choices"] == []
    assert extra["sglext"] == whole["sglext"] | {"input_ids": client.engine.tokenizer.encode(RENDERED)}
    assert usage["usage"] == whole["usage"]


async def test_a_streamed_tool_call_has_a_name_and_then_arguments(client: Any) -> None:
    body = {"messages": MESSAGES, "stream": True, "tools": [TOOL]}
    chunks = await client.events(CHAT, body, says("hmm</think>" + CALL + "\n" + CALL))
    parts = [part for chunk in chunks for choice in chunk["choices"] for part in choice["delta"].get("tool_calls", ())]
    assert [(part["index"], part["function"]["name"]) for part in parts] == [
        (0, "bash"),
        (0, None),
        (1, "bash"),
        (1, None),
    ]
    assert parts[1]["function"]["arguments"] == '{"command": "ls"}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("name", ["return_token_ids", "return_prompt_token_ids", "return_meta_info"])
async def test_what_sglang_cannot_stream_is_refused(client: Any, name: str) -> None:
    status, error = await client.post(CHAT, {"messages": MESSAGES, "stream": True, name: True})
    assert status == 400
    assert error["object"] == "error"
    assert error["message"].startswith(f"{name} is not supported with streaming")


async def test_parameters_have_openais_names(client: Any) -> None:
    body = {"seed": 3, "ignore_eos": True, "return_token_ids": True}
    two = [
        await client.post(CHAT, {"messages": MESSAGES, "max_completion_tokens": 9, **body}),
        await client.post(CHAT, {"messages": MESSAGES, "max_tokens": 9, **body}),
    ]
    ids = [answer["choices"][0]["response_token_ids"] for _, answer in two]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 9
    assert two[0][1]["choices"][0]["finish_reason"] == "length"
    stopped = await chat(client, "<think></think>one two three", stop=["two"], no_stop_trim=False)
    assert stopped["choices"][0]["message"]["content"] == "one "
    assert stopped["choices"][0]["matched_stop"] == "two"


async def test_a_stop_text_never_shows_in_a_stream(client: Any) -> None:
    body = {"messages": MESSAGES, "stream": True, "stop": ["two three"]}
    chunks = await client.events(CHAT, body, says("<think></think>one two fix two three"))
    assert merged(chunks) == ("", "one two fix ")


async def test_siblings_are_choices(client: Any) -> None:
    body = {"messages": MESSAGES, "n": 3, "seed": 1, "max_tokens": 5, "ignore_eos": True, "return_token_ids": True}
    _, answer = await client.post(CHAT, body)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len({tuple(choice["response_token_ids"]) for choice in answer["choices"]}) == 3
    assert answer["usage"]["completion_tokens"] == 15
    chunks = await client.events(CHAT, {**body, "stream": True, "return_token_ids": False})
    ends = [choice["index"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert ends == [0, 1, 2]


async def test_the_messages_of_agents_are_understood(client: Any) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"x":1}'}}],
        },
        {"role": "tool", "content": "ok", "tool_call_id": "c"},
    ]
    answer = await chat(client, messages=messages, return_prompt_token_ids=True)
    prompt = client.engine.tokenizer.decode(answer["choices"][0]["prompt_token_ids"], skip_special_tokens=False)
    assert "user\na b<|im_end|>" in prompt
    assert '{"name": "f", "arguments": {"x": 1}}' in prompt


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "Messages cannot be empty."),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "no text"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": MESSAGES, "temperature": "hot"}, "temperature"),
        ({"messages": MESSAGES, "response_format": {"type": "json_object"}}, "json_object"),
        ({"messages": MESSAGES, "stream_options": 5}, "stream_options"),
    ],
)
async def test_a_bad_request_is_a_clean_400(client: Any, body: dict[str, Any], said: str) -> None:
    status, error = await client.post(CHAT, body)
    assert (status, error["code"], error["object"]) == (400, 400, "error")
    assert said in error["message"]


async def test_an_aborted_chat_says_so(client: Any) -> None:
    body = {"messages": MESSAGES, "rid": "r", "ignore_eos": True, "return_meta_info": True}
    running = asyncio.create_task(client.post(CHAT, body))
    await client.until(lambda: any(item.output_ids for item in client.engine.unfinished()))
    await client.post("/abort_request", {"rid": "r"})
    _, answer = await running
    choice = answer["choices"][0]
    assert (answer["id"], choice["finish_reason"]) == ("r", "abort")
    assert choice["meta_info"]["finish_reason"]["message"] == "Aborted"


async def test_completions_take_text_ids_and_lists(client: Any) -> None:
    tokenizer = client.engine.tokenizer
    body = {"max_tokens": 3, "ignore_eos": True, "logprobs": 1, "temperature": 0, "return_token_ids": True}
    _, by_text = await client.post("/v1/completions", {"prompt": "hello", **body})
    _, by_ids = await client.post("/v1/completions", {"prompt": tokenizer.encode("hello"), **body})
    assert by_text["choices"] == by_ids["choices"]
    choice = by_text["choices"][0]
    assert by_text["object"] == "text_completion"
    assert choice["text"] == tokenizer.decode(choice["token_ids"])
    assert choice["logprobs"]["text_offset"] == [-1, -1, -1]
    assert [next(iter(top.values())) for top in choice["logprobs"]["top_logprobs"]] == choice["logprobs"][
        "token_logprobs"
    ]
    assert by_text["usage"]["completion_tokens_details"] is None
    _, batch = await client.post("/v1/completions", {"prompt": ["a", "b"], "n": 2, **body})
    assert [item["index"] for item in batch["choices"]] == [0, 1, 2, 3]
    assert batch["usage"]["prompt_tokens"] == 2
    assert (await client.post("/v1/completions", {"prompt": []}))[0] == 400


async def test_a_streamed_completion_adds_up(client: Any) -> None:
    body = {"prompt": "hello", "max_tokens": 12, "seed": 1, "ignore_eos": True, "return_token_ids": True, "logprobs": 1}
    _, whole = await client.post("/v1/completions", body)
    chunks = await client.events("/v1/completions", body | {"stream": True})
    pieces = [chunk["choices"][0] for chunk in chunks]
    assert "".join(piece["text"] for piece in pieces) == whole["choices"][0]["text"]
    assert [token for piece in pieces for token in piece["token_ids"]] == whole["choices"][0]["token_ids"]
    assert pieces[0]["prompt_token_ids"] == whole["choices"][0]["prompt_token_ids"]
    assert pieces[-1]["finish_reason"] == "length"


async def test_the_openai_client_understands_it(client: Any) -> None:
    async with AsyncOpenAI(base_url=client.served.url + "/v1", api_key="none") as openai:
        headers = says("hmm</think>Paris." + CALL)
        answer = await openai.chat.completions.create(
            model="any", messages=MESSAGES, tools=[TOOL], extra_headers=headers
        )  # type: ignore[list-item]
        assert answer.choices[0].message.content == "Paris."
        assert answer.choices[0].message.tool_calls[0].function.name == "bash"  # type: ignore[index,union-attr]
        stream = await openai.chat.completions.create(
            model="any", messages=MESSAGES, stream=True, extra_headers=headers
        )  # type: ignore[list-item]
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == "Paris." + CALL
        models = await openai.models.list()
        assert models.data[0].id == "reference"
