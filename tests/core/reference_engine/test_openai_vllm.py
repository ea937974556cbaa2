"""OpenAI's routes in vLLM's dialect; shapes are those of a real server."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pybase64
import pytest

from router_core.reference_engine.recompute import recompute

MESSAGES = [{"role": "user", "content": "Hi."}]
RENDERED = "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n"
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
PROMPT = [1015, 85, 82, 999, 12, 64, 7, 300, 301, 302, 303]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
async def vllm(serving: Any) -> AsyncIterator[Any]:
    async with serving(dialect="vllm", seed=1) as client:
        yield client


def says(text: str) -> dict[str, str]:
    return {"x-reference-script": json.dumps(text)}


def npy(blob: str) -> Any:
    return np.load(io.BytesIO(pybase64.b64decode(blob)))


async def post(client: Any, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
    status, answer = await client.post(path, {"model": "reference"} | body, headers)
    assert status == 200, answer
    return answer


async def test_a_chat_has_the_shape_of_vllm(vllm: Any) -> None:
    headers = says("<think>\nhmm\n</think>\n\nHello.") | {"x-request-id": "my-1"}
    answer = await post(vllm, CHAT, {"messages": MESSAGES, "return_token_ids": True}, headers)
    tokenizer = vllm.engine.tokenizer
    prompt, output = tokenizer.encode(RENDERED), tokenizer.encode("<think>\nhmm\n</think>\n\nHello.<|im_end|>")
    thinking = len(tokenizer.encode("\nhmm\n"))
    answer.pop("created")
    experts = npy(answer["choices"][0].pop("routed_experts"))
    assert experts.dtype == np.uint8
    assert np.array_equal(experts, recompute(vllm.engine.model, prompt + output[:-1]).experts)
    assert answer == {
        "id": "chatcmpl-my-1",
        "object": "chat.completion",
        "model": "reference",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "\n\nHello.",
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": "\nhmm\n",
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": output,
            }
        ],
        "service_tier": None,
        "system_fingerprint": "vllm-0.32.0-reference",
        "usage": {
            "prompt_tokens": len(prompt),
            "total_tokens": len(prompt) + len(output),
            "completion_tokens": len(output),
            "prompt_tokens_details": {"cached_tokens": 0, "created_cache_tokens": 0, "multimodal_tokens": None},
            "completion_tokens_details": {"reasoning_tokens": thinking},
        },
        "prompt_logprobs": None,
        "prompt_token_ids": prompt,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


async def test_tool_calls_are_parsed(vllm: Any) -> None:
    answer = await post(vllm, CHAT, {"messages": MESSAGES, "tools": [TOOL]}, says("hmm</think>\n\n" + CALL))
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    call = choice["message"]["tool_calls"][0]
    assert call == {
        "id": call["id"],
        "type": "function",
        "function": {"name": "bash", "arguments": '{"command": "ls"}'},
    }
    assert choice["token_ids"] is None


async def test_ids_are_given_in_kv_transfer_params(vllm: Any) -> None:
    body: dict[str, Any] = {"messages": MESSAGES, "return_token_ids": True, "max_tokens": 1}
    answer = await post(vllm, CHAT, body | {"kv_transfer_params": {"prompt_token_ids": PROMPT}})
    assert answer["prompt_token_ids"] == PROMPT
    rendered = await post(vllm, CHAT, body | {"input_ids": PROMPT})
    assert rendered["prompt_token_ids"] == vllm.engine.tokenizer.encode(RENDERED)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
async def test_logprobs_are_those_before_temperature(vllm: Any, temperature: float) -> None:
    body = {
        "prompt": PROMPT,
        "max_tokens": 12,
        "temperature": temperature,
        "logprobs": 2,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "ignore_eos": True,
    }
    answer = await post(vllm, COMPLETIONS, body)
    choice = answer["choices"][0]
    output, told = choice["token_ids"], choice["logprobs"]
    truth = recompute(vllm.engine.model, PROMPT + output[:-1])
    rows = truth.logprobs[len(PROMPT) - 1 :]
    assert told["token_logprobs"] == [float(np.float32(row[token])) for row, token in zip(rows, output, strict=True)]
    assert told["tokens"] == [f"token_id:{token}" for token in output]
    for top, token, row in zip(told["top_logprobs"], output, rows, strict=True):
        best = np.argsort(-row, kind="stable")[:2].tolist()
        assert list(top) == [f"token_id:{item}" for item in dict.fromkeys([token, *best])]
    assert np.array_equal(npy(choice["routed_experts"]), truth.experts)
    assert choice["prompt_token_ids"] == PROMPT


async def test_prompt_logprobs_are_told_with_ranks(vllm: Any) -> None:
    answer = await post(vllm, COMPLETIONS, {"prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": 1})
    told = answer["choices"][0]["prompt_logprobs"]
    rows = recompute(vllm.engine.model, PROMPT).logprobs
    assert told[0] is None
    assert len(told) == len(PROMPT)
    for entry, token, row in zip(told[1:], PROMPT[1:], rows, strict=False):
        best = int(row.argmax())
        assert set(entry) == {str(token), str(best)}
        assert entry[str(token)] == {
            "logprob": float(np.float32(row[token])),
            "rank": int((row > row[token]).sum()) + 1,
            "decoded_token": vllm.engine.tokenizer.decode([token], skip_special_tokens=False),
        }


async def test_experts_from_a_prompt_position_are_the_last_rows(vllm: Any) -> None:
    body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    whole = await post(vllm, COMPLETIONS, body)
    part = await post(vllm, COMPLETIONS, body | {"routed_experts_prompt_start": 5})
    first, rest = (npy(answer["choices"][0]["routed_experts"]) for answer in (whole, part))
    assert first.shape == (len(PROMPT) + 5, 4, 2)
    assert np.array_equal(first[5:], rest)
    status, error = await vllm.post(COMPLETIONS, body | {"routed_experts_prompt_start": len(PROMPT)})
    assert (status, error["error"]["param"]) == (400, "routed_experts_prompt_start")


async def test_experts_are_null_without_the_servers_flag(serving: Any) -> None:
    async with serving(dialect="vllm", routed_experts=False) as client:
        answer = await post(client, COMPLETIONS, {"prompt": PROMPT, "max_tokens": 1})
        assert answer["choices"][0]["routed_experts"] is None


async def test_a_streamed_chat_has_ids_in_each_chunk(vllm: Any) -> None:
    body = {
        "model": "reference",
        "messages": MESSAGES,
        "return_token_ids": True,
        "logprobs": True,
        "stream": True,
        "tools": [TOOL],
    }
    said = "<think>\nhmm\n</think>\n\nI look.\n" + CALL
    chunks = await vllm.events(CHAT, body, says(said))
    assert chunks[0]["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    _, rendered = await vllm.post("/tokenize", {"messages": MESSAGES, "tools": [TOOL]})
    assert chunks[0]["prompt_token_ids"] == rendered["tokens"]
    pieces = [chunk["choices"][0] for chunk in chunks[1:]]
    ids = [token for piece in pieces for token in piece["token_ids"]]
    assert ids == [*vllm.engine.tokenizer.encode(said), vllm.engine.tokenizer.eos_id]
    assert sum(len(piece["logprobs"]["content"]) for piece in pieces) == len(ids)
    assert "".join(piece["delta"].get("reasoning", "") for piece in pieces) == "\nhmm\n"
    assert "".join(piece["delta"].get("content", "") for piece in pieces) == "\n\nI look."
    calls = [call for piece in pieces for call in piece["delta"].get("tool_calls", ())]
    assert [call["function"]["name"] for call in calls] == ["bash"]
    assert (pieces[-1]["finish_reason"], pieces[-1]["stop_reason"]) == ("tool_calls", None)
    assert chunks[-1]["system_fingerprint"] == "vllm-0.32.0-reference"
    assert all("routed_experts" not in piece for piece in pieces)


async def test_a_streamed_completion_adds_up(vllm: Any) -> None:
    body = {"prompt": PROMPT, "max_tokens": 12, "seed": 1, "ignore_eos": True, "return_token_ids": True, "logprobs": 0}
    whole = (await post(vllm, COMPLETIONS, body))["choices"][0]
    more = {"model": "reference", "stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage = await vllm.events(COMPLETIONS, body | more)
    pieces = [chunk["choices"][0] for chunk in chunks]
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    assert [token for piece in pieces for token in piece["token_ids"]] == whole["token_ids"]
    for key in ("text_offset", "token_logprobs", "tokens", "top_logprobs"):
        assert [item for piece in pieces for item in piece["logprobs"][key]] == whole["logprobs"][key]
    assert pieces[0]["prompt_token_ids"] == PROMPT
    assert all(piece["prompt_token_ids"] is None for piece in pieces[1:])
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 12


async def test_what_stopped_it_is_named_and_not_in_the_text(vllm: Any) -> None:
    words = vllm.engine.tokenizer.encode("one two three")
    body = {"prompt": "a", "stop_token_ids": [words[-1]], "return_token_ids": True, "ignore_eos": True}
    choice = (await post(vllm, COMPLETIONS, body, {"x-reference-script": str(words)}))["choices"][0]
    text = vllm.engine.tokenizer.decode(words[:-1])
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text, "stop", words[-1])
    assert choice["token_ids"] == words
    choice = (await post(vllm, COMPLETIONS, {"prompt": "a", "stop": "two"}, says("one two three")))["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == ("one ", "two")


async def test_bytes_that_are_no_character_yet_are_dropped_at_the_end(vllm: Any) -> None:
    words = vllm.engine.tokenizer.encode("ok 🚀")[:-1]
    body = {"prompt": "a", "max_tokens": len(words), "logprobs": 0}
    choice = (await post(vllm, COMPLETIONS, body, {"x-reference-script": str(words)}))["choices"][0]
    assert choice["text"] == "ok "
    assert choice["logprobs"]["tokens"][-1] == ""


async def test_a_last_message_is_continued(vllm: Any) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "The answer"}]
    body = {"messages": messages, "continue_final_message": True, "return_token_ids": True, "max_tokens": 1}
    answer = await post(vllm, CHAT, body)
    prompt = vllm.engine.tokenizer.decode(answer["prompt_token_ids"], skip_special_tokens=False)
    assert prompt == RENDERED + "<think>\n\n</think>\n\nThe answer"


async def test_batches_and_siblings_are_numbered(vllm: Any) -> None:
    body = {
        "prompt": [PROMPT, PROMPT[:5]],
        "n": 2,
        "max_tokens": 4,
        "seed": 1,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    answer = await post(vllm, COMPLETIONS, body)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [len(choice["prompt_token_ids"]) for choice in answer["choices"]] == [11, 11, 5, 5]
    assert answer["usage"]["prompt_tokens"] == 16
    assert answer["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("body", "status", "param", "said"),
    [
        ({"model": "nope", "prompt": "x"}, 404, "model", "The model `nope` does not exist. Valid aliases: reference."),
        ({"prompt": "x", "max_tokens": -1}, 400, "max_tokens", "max_tokens must be at least 1, got -1."),
        ({"prompt": "x", "max_tokens": 100000}, 400, "max_tokens", "cannot be greater than max_model_len=32768"),
        ({"prompt": [999999]}, 400, "prompt", "999999 is outside the vocabulary"),
        ({"prompt": "x", "temperature": -1}, 400, "temperature", "temperature must be in"),
        ({"prompt": [1] * 40000}, 400, "input_tokens", "This model's maximum context length is 32768 tokens."),
    ],
)
async def test_errors_have_the_shape_of_vllm(
    vllm: Any, body: dict[str, Any], status: int, param: str, said: str
) -> None:
    got, answer = await vllm.post(COMPLETIONS, body)
    assert got == status
    assert (answer["error"]["param"], answer["error"]["code"]) == (param, status)
    assert said in answer["error"]["message"]


async def running(client: Any, request_id: str, **body: Any) -> "asyncio.Task[Any]":
    """Begin a long completion and return it once it has tokens."""
    long = {"prompt": PROMPT, "max_tokens": 30000, "ignore_eos": True, "return_token_ids": True} | body
    task = asyncio.create_task(post(client, COMPLETIONS, long, {"x-request-id": request_id}))
    rid = f"cmpl-{request_id}"
    await client.until(
        lambda: any(item.request.group == rid and item.output_ids for item in client.engine.unfinished())
    )
    return task


async def test_an_answer_is_cut_to_the_room_there_is(serving: Any) -> None:
    async with serving(dialect="vllm", context_length=len(PROMPT) + 8) as client:
        body = {"prompt": PROMPT, "max_tokens": 19, "ignore_eos": True, "return_token_ids": True}
        choice = (await post(client, COMPLETIONS, body))["choices"][0]
        assert (len(choice["token_ids"]), choice["finish_reason"]) == (8, "length")


async def test_requests_are_aborted_by_id_or_all(vllm: Any) -> None:
    first, second = await running(vllm, "a", n=2), await running(vllm, "b")
    assert await vllm.post("/abort_requests", {"request_ids": ["cmpl-a"]}) == (200, {"status": "aborted", "aborted": 1})
    choices = (await first)["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["abort", "abort"]
    assert all(choice["token_ids"] for choice in choices)
    assert not second.done()
    assert await vllm.post("/abort_requests", {}) == (200, {"status": "aborted", "aborted": 1})
    assert (await second)["choices"][0]["finish_reason"] == "abort"


async def test_a_pause_aborts_or_keeps_what_runs(vllm: Any) -> None:
    first = await running(vllm, "a")
    assert await vllm.post("/pause") == (200, {"status": "paused"})
    assert (await first)["choices"][0]["finish_reason"] == "abort"
    assert await vllm.get("/is_paused") == (200, {"is_paused": True})
    assert await vllm.post("/resume") == (200, {"status": "resumed"})
    second = await running(vllm, "b", max_tokens=500)
    await vllm.post("/pause?mode=keep")
    assert await vllm.post("/update_weight_version", {"new_version": "v9"}) == (
        200,
        {"success": True, "new_version": "v9"},
    )
    assert await vllm.get("/weight_info") == (200, {"weight_version": "v9"})
    await vllm.post("/resume")
    assert len((await second)["choices"][0]["token_ids"]) == 500


async def test_a_pause_can_wait_for_what_runs(vllm: Any) -> None:
    task = await running(vllm, "a", max_tokens=300)
    await vllm.post("/pause?mode=wait")
    assert len((await task)["choices"][0]["token_ids"]) == 300
    assert vllm.engine.is_paused
    assert (await vllm.post("/pause?mode=sometimes"))[0] == 400


async def test_a_sleeping_engine_wakes_up(vllm: Any) -> None:
    assert await vllm.post("/sleep?level=2") == (200, {"status": "sleeping", "level": 2})
    assert await vllm.get("/is_sleeping") == (200, {"is_sleeping": True})
    held = asyncio.create_task(post(vllm, COMPLETIONS, {"prompt": PROMPT, "max_tokens": 1}))
    await vllm.until(lambda: vllm.engine.waiting_requests)
    assert await vllm.post("/wake_up") == (200, {"status": "awake", "tags": None})
    assert (await held)["choices"]
    assert await vllm.post("/reset_prefix_cache") == (200, {"success": True})


async def test_weights_are_changed(vllm: Any) -> None:
    body = {"prompt": PROMPT, "max_tokens": 9, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    before = (await post(vllm, COMPLETIONS, body))["choices"][0]["token_ids"]
    update = {"update_info": {"model_path": "seed:5"}, "weight_version": "v5"}
    assert await vllm.post("/update_weights", update) == (200, {"message": "Weights updated"})
    assert (await post(vllm, COMPLETIONS, body))["choices"][0]["token_ids"] != before
    assert vllm.engine.weight_version == "v5"
    assert (await vllm.post("/update_weights", {"update_info": {"model_path": "/nowhere"}}))[0] == 400


async def test_the_engine_is_described(vllm: Any) -> None:
    assert await vllm.get("/health") == (200, "")
    assert await vllm.post("/ping") == (200, "")
    assert await vllm.get("/version") == (200, {"version": "0.32.0"})
    assert await vllm.get("/load") == (200, {"server_load": 0})
    _, models = await vllm.get("/v1/models")
    assert (models["data"][0]["id"], models["data"][0]["owned_by"]) == ("reference", "vllm")
    _, metrics = await vllm.get("/metrics")
    assert "vllm:num_requests_running" in metrics
    assert (await vllm.get("/generate"))[0] == 404


async def test_text_and_messages_become_ids(vllm: Any) -> None:
    tokenizer = vllm.engine.tokenizer
    _, text = await vllm.post("/tokenize", {"prompt": "hi there", "return_token_strs": True})
    assert text["tokens"] == tokenizer.encode("hi there")
    assert len(text["token_strs"]) == text["count"]
    _, rendered = await vllm.post("/tokenize", {"messages": MESSAGES})
    assert rendered == {
        "count": len(rendered["tokens"]),
        "max_model_len": 32768,
        "tokens": tokenizer.encode(RENDERED),
        "token_strs": None,
    }
    assert await vllm.post("/detokenize", {"tokens": rendered["tokens"]}) == (200, {"prompt": RENDERED})
