"""What a scripted engine answers has the shapes of SGLang 0.5.23 and vLLM 0.32, with values that fit each other."""

import asyncio
import base64
import io
from typing import Any

import numpy as np
import openai
import orjson
import pytest

from router_core.testing import (
    TURN_END,
    Experts,
    RawAnswer,
    RawClient,
    ScriptedWorker,
    ToolCall,
    build_request,
    decode,
    encode,
    exchange_once,
    render_chat,
)
from router_core.testing.engines import EngineName

GENERATE_META = {
    "id", "finish_reason", "prompt_tokens", "weight_version", "num_retractions", "reasoning_tokens",
    "completion_tokens", "cached_tokens", "weight_versions", "cached_tokens_details", "dp_rank", "e2e_latency",
}  # fmt: skip
LOGPROB_META = {"input_token_logprobs", "output_token_logprobs", "output_token_logprobs_length"}
MESSAGES: Any = [{"role": "user", "content": "Say hi."}]
CHAT = "/v1/chat/completions"
engines = pytest.mark.parametrize("engine", ["sglang", "vllm"])


async def ask(worker: ScriptedWorker, target: str = "/generate", **asked: Any) -> Any:
    answer = await exchange_once(worker.port, target=target, json=asked)
    assert (answer.status, answer.clean) == (200, True), answer.body
    return answer.json()


def events(answer: RawAnswer) -> list[Any]:
    assert answer.clean is True
    *events, done = answer.body.decode().removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    return [orjson.loads(event.removeprefix("data: ")) for event in events]


async def ask_stream(worker: ScriptedWorker, target: str = "/generate", **asked: Any) -> list[Any]:
    return events(await exchange_once(worker.port, target=target, json={**asked, "stream": True}))


# POST /generate


async def test_generate_has_the_fields_of_the_engine() -> None:
    async with ScriptedWorker() as worker:
        worker.say("hi!")
        answer = await ask(worker, text="hello", rid="my-rid")
    assert set(answer) == {"text", "output_ids", "meta_info"}
    meta = answer["meta_info"]
    assert set(meta) == GENERATE_META
    assert (answer["text"], answer["output_ids"]) == ("hi!", [*encode("hi!"), TURN_END])
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("my-rid", 5, 4)
    assert meta["finish_reason"] == {"type": "stop", "matched": TURN_END}
    assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": 4}]


async def test_generate_gives_logprobs_and_experts_only_when_asked() -> None:
    ids = [7, 8, 9]
    async with ScriptedWorker() as worker:
        worker.say("abc", ids=ids, finish="length", logprobs=[-1.0, -0.5, -2.5])
        answer = await ask(worker, input_ids=[1, 2, 3, 4], return_logprob=True, return_routed_experts=True)
        worker.engine.experts = None
        flagless = await ask(worker, input_ids=[1, 2, 3, 4], return_routed_experts=True)
    meta = answer["meta_info"]
    assert set(meta) == GENERATE_META | LOGPROB_META | {"routed_experts"}
    assert meta["finish_reason"] == {"type": "length", "length": 3}
    assert meta["output_token_logprobs"] == [[-1.0, 7, None], [-0.5, 8, None], [-2.5, 9, None]]
    experts = np.frombuffer(base64.b64decode(meta["routed_experts"]), "<i4").reshape(-1, 4, 2)
    assert experts.shape[0] == 4 + 3 - 1
    assert experts.reshape(6, -1).tolist() == Experts().rows([1, 2, 3, 4, 7, 8, 9])
    assert "routed_experts" not in flagless["meta_info"]


async def test_generate_streams_cumulatively() -> None:
    async with ScriptedWorker() as worker:
        worker.say("abc")
        told = await ask_stream(worker, text="hi", return_logprob=True, return_routed_experts=True)
    assert [event["text"] for event in told] == ["a", "ab", "abc", "abc"]
    assert [len(event["output_ids"]) for event in told] == [1, 2, 3, 4]
    assert [len(event["meta_info"]["output_token_logprobs"]) for event in told] == [1, 2, 3, 4]
    assert all(event["meta_info"]["finish_reason"] is None for event in told[:-1])
    only_last = {"weight_versions", "routed_experts", "e2e_latency"}
    assert [only_last & set(event["meta_info"]) for event in told] == [set(), set(), set(), only_last]


async def test_default_words_obey_the_limit_and_scripted_words_do_not() -> None:
    async with ScriptedWorker() as worker:
        short = await ask(worker, text="hi", sampling_params={"max_new_tokens": 5})
        worker.say("scripted words")
        exact = await ask(worker, text="hi", sampling_params={"max_new_tokens": 5})
    assert (short["text"], short["meta_info"]["finish_reason"]) == ("Words", {"type": "length", "length": 5})
    assert exact["text"] == "scripted words"


async def test_batches_and_copies_answer_with_a_list() -> None:
    async with ScriptedWorker() as worker:
        worker.say("one")
        worker.say("two")
        batch = await ask(worker, input_ids=[[1], [2, 3]])
        copies = await ask(worker, input_ids=[1], sampling_params={"n": 2})
        assert isinstance(await ask(worker, input_ids=[[1]]), list)
    assert [answer["text"] for answer in batch] == ["one", "two"]
    assert [answer["meta_info"]["prompt_tokens"] for answer in batch] == [1, 2]
    assert len(copies) == 2


async def test_words_come_in_order_and_repeat_as_told() -> None:
    async with ScriptedWorker() as worker:
        worker.say("for ever", times=None)
        worker.say("twice", times=2)
        assert [(await ask(worker, text="hi"))["text"] for _ in range(4)] == ["twice", "twice", "for ever", "for ever"]


async def test_what_is_no_generation_is_answered_like_an_engine() -> None:
    async with ScriptedWorker() as worker:
        assert (await exchange_once(worker.port, json={})).status == 400
        assert (await exchange_once(worker.port, body=b"{")).status == 400
        assert (await exchange_once(worker.port, "GET", "/nothing")).status == 404
        assert (await exchange_once(worker.port, "POST", "/v1/embeddings", json={})).status == 404
        assert (await exchange_once(worker.port, "POST", "/flush_cache")).status == 200
        await ask(worker, "/update_weight_version", new_version="v7")
        assert (await ask(worker, text="hi"))["meta_info"]["weight_version"] == "v7"


# Holding and aborting


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("target", ["/generate", CHAT])
async def test_an_abort_ends_a_held_generation_with_the_tokens_so_far(target: str, stream: bool) -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.say("abcdef", hold_after=2)
        asked = {"text": "hi", "messages": MESSAGES, "rid": "r-1", "stream": stream}
        await client.send(build_request(target=target, json=asked))
        await worker.wait_until(lambda: worker.live == 1)
        await worker.wait_for_requests(1)
        if stream:
            answer = await client.read_head()
            for _ in range(2 if target == "/generate" else 3):
                await client.read_piece(answer)
        await ask(worker, "/abort_request", rid="other")
        await ask(worker, "/abort_request", rid="r-1")
        if not stream:
            answer = await client.read_answer()
        await client.read_body(answer)
    last = events(answer)[-1] if stream else answer.json()
    if target == "/generate":
        assert (last["text"], last["meta_info"]["finish_reason"]["type"]) == ("ab", "abort")
    else:
        assert last["choices"][0]["finish_reason"] == "abort"


async def test_held_words_wait_and_go_on_when_released() -> None:
    async with ScriptedWorker() as worker:
        words = worker.say("held", hold_after=0)
        asking = asyncio.create_task(ask(worker, text="hi"))
        await worker.wait_for_requests(1)
        assert not asking.done()
        words.release()
        assert (await asking)["text"] == "held"


async def test_an_aborted_vllm_stream_still_says_how_it_ended() -> None:
    async with ScriptedWorker("vllm") as worker, RawClient(worker.port) as client:
        worker.say("abcdef", hold_after=2)
        await client.send(
            build_request(target=CHAT, json={"messages": MESSAGES, "stream": True, "return_token_ids": True})
        )
        answer = await client.read_head()
        for _ in range(3):
            await client.read_piece(answer)
        worker.engine.abort(None)
        await client.read_body(answer)
    last = events(answer)[-1]["choices"][0]
    assert (last["finish_reason"], last["token_ids"], last["delta"]) == ("abort", [], {})


# POST /v1/chat/completions


async def test_sglang_chat_has_the_fields_of_the_engine() -> None:
    async with ScriptedWorker() as worker:
        answer = await ask(worker, CHAT, model="m", messages=MESSAGES, logprobs=True)
        full = await ask(
            worker, CHAT, messages=MESSAGES, input_ids=[5, 6], return_meta_info=True, return_prompt_token_ids=True,
            return_token_ids=True, logprobs=True, return_routed_experts=True, return_input_ids_in_sglext=True,
        )  # fmt: skip
    assert set(answer) == {"id", "object", "created", "model", "choices", "usage", "metadata"}
    (choice,) = answer["choices"]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason", "matched_stop"}
    assert choice["message"] == {
        "role": "assistant",
        "content": "Words of a scripted worker.",
        "reasoning_content": None,
    }
    assert len(choice["logprobs"]["content"]) == answer["usage"]["completion_tokens"]
    assert set(choice["logprobs"]["content"][0]) == {"token", "bytes", "logprob", "top_logprobs"}
    (choice,) = full["choices"]
    assert (choice["prompt_token_ids"], choice["response_token_ids"][-1]) == ([5, 6], TURN_END)
    assert set(choice["meta_info"]) == GENERATE_META | LOGPROB_META | {"routed_experts"}
    assert full["sglext"] == {"input_ids": [5, 6]}


async def test_sglang_chat_streams_with_an_extension_before_its_end() -> None:
    async with ScriptedWorker() as worker:
        worker.say("ab", reasoning="hm")
        told = await ask_stream(
            worker, CHAT, messages=MESSAGES, logprobs=True, stream_options={"include_usage": True},
            return_output_ids_in_sglext=True, return_routed_experts=True,
        )  # fmt: skip
        refused = await exchange_once(
            worker.port, target=CHAT, json={"messages": MESSAGES, "stream": True, "return_token_ids": True}
        )
    first, *tokens, end, extension, usage = told
    assert first["choices"][0]["delta"] == {"reasoning_content": None, "role": "assistant", "content": ""}
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in tokens) == "ab"
    assert "".join(event["choices"][0]["delta"]["reasoning_content"] or "" for event in tokens) == "hm"
    assert end["choices"][0]["finish_reason"] == "stop"
    assert extension["choices"] == [] and set(extension["sglext"]) == {"routed_experts", "output_ids"}
    assert len(tokens) == len(extension["sglext"]["output_ids"][0]) == usage["usage"]["completion_tokens"]
    assert refused.status == 400
    assert "return_token_ids" in refused.json()["message"]


async def test_vllm_chat_has_the_fields_of_the_engine() -> None:
    async with ScriptedWorker("vllm") as worker:
        worker.say("abc", reasoning="hm")
        answer = await ask(worker, CHAT, messages=MESSAGES, logprobs=True, return_token_ids=True)
        plain = await ask(worker, CHAT, messages=MESSAGES, kv_transfer_params={"prompt_token_ids": [1, 2, 3]})
    assert set(answer) == {
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage", "prompt_logprobs",
        "prompt_token_ids", "prompt_text", "kv_transfer_params", "ec_transfer_params", "metrics",
    }  # fmt: skip
    (choice,) = answer["choices"]
    assert set(choice) == {
        "index",
        "message",
        "logprobs",
        "finish_reason",
        "stop_reason",
        "token_ids",
        "routed_experts",
    }
    assert (choice["message"]["content"], choice["message"]["reasoning"]) == ("abc", "hm")
    assert answer["prompt_token_ids"] == encode(render_chat(MESSAGES))
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == answer["usage"]["completion_tokens"]
    experts = np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])))
    assert (experts.dtype, experts.shape) == (np.uint8, (answer["usage"]["total_tokens"] - 1, 4, 2))
    assert plain["usage"]["prompt_tokens"] == 3
    assert plain["prompt_token_ids"] is plain["choices"][0]["token_ids"] is None


async def test_vllm_chat_streams_ids_with_each_token() -> None:
    async with ScriptedWorker("vllm") as worker:
        worker.say("hello")
        told = await ask_stream(
            worker, CHAT, messages=MESSAGES, return_token_ids=True, stream_options={"include_usage": True}
        )
    first, *tokens, usage = told
    assert first["prompt_token_ids"] == encode(render_chat(MESSAGES))
    ids = [token_id for event in tokens for token_id in event["choices"][0]["token_ids"]]
    assert ids == [*encode("hello"), TURN_END]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in tokens) == "hello"
    assert [event["choices"][0]["finish_reason"] for event in tokens][-2:] == [None, "stop"]
    assert usage["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("stream", [False, True])
async def test_vllm_completions_take_and_give_ids(stream: bool) -> None:
    asked = {"prompt": [1, 2, 3], "return_token_ids": True, "logprobs": 1, "return_tokens_as_token_ids": True}
    async with ScriptedWorker("vllm") as worker:
        worker.say("abc", finish="length")
        told = (
            await ask_stream(worker, "/v1/completions", **asked)
            if stream
            else [await ask(worker, "/v1/completions", **asked)]
        )
    choices = [event["choices"][0] for event in told]
    assert [token_id for choice in choices for token_id in choice["token_ids"]] == encode("abc")
    assert "".join(choice["text"] for choice in choices) == "abc"
    assert choices[0]["prompt_token_ids"] == [1, 2, 3]
    assert [name for choice in choices for name in choice["logprobs"]["tokens"]] == [
        "token_id:97",
        "token_id:98",
        "token_id:99",
    ]
    assert choices[-1]["finish_reason"] == "length"


# The openai SDK reads it


@engines
async def test_the_openai_sdk_reads_a_chat(engine: EngineName) -> None:
    async with ScriptedWorker(engine) as worker, openai.AsyncOpenAI(base_url=f"{worker.url}/v1", api_key="k") as client:
        worker.say("hello there")
        worker.say("", tool_calls=[ToolCall("bash", {"command": "ls"})])
        chat: Any = await client.chat.completions.create(model="m", messages=MESSAGES, logprobs=True)
        called: Any = await client.chat.completions.create(model="m", messages=MESSAGES)
        assert [model.id async for model in client.models.list()] == ["scripted"]
    assert chat.choices[0].message.content == "hello there"
    assert chat.choices[0].finish_reason == "stop"
    assert chat.usage.completion_tokens == len(chat.choices[0].logprobs.content) == len("hello there") + 1
    (call,) = called.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("bash", '{"command":"ls"}')
    assert called.choices[0].finish_reason == "tool_calls"


@engines
async def test_the_openai_sdk_reads_a_chat_stream(engine: EngineName) -> None:
    async with ScriptedWorker(engine) as worker, openai.AsyncOpenAI(base_url=f"{worker.url}/v1", api_key="k") as client:
        worker.say("hello", tool_calls=[ToolCall("bash", {"command": "ls"})])
        stream = await client.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks: list[Any] = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "hello"
    (call,) = [call for delta in deltas for call in delta.tool_calls or []]
    assert (call.index, call.function.name) == (0, "bash")
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + chunks[-1].usage.completion_tokens


# Tokens, words, experts


def test_the_next_prompt_begins_with_the_last_prompt_and_answer() -> None:
    prompt = encode(render_chat(MESSAGES))
    answer = [*encode("Hi 你好 🦀"), TURN_END]
    later = encode(
        render_chat(
            [*MESSAGES, {"role": "assistant", "content": "Hi 你好 🦀"}, {"role": "user", "content": [{"text": "x"}]}]
        )
    )
    assert later[: len(prompt) + len(answer)] == prompt + answer
    assert decode(answer) == "Hi 你好 🦀"


async def test_ids_and_text_that_are_strangers_still_make_pieces_of_the_text() -> None:
    async with ScriptedWorker() as worker:
        words = worker.say("hello world", ids=[1, 2, 3])
        assert "".join(words.pieces) == "hello world" and len(words.pieces) == 3
        assert worker.say(ids=encode("from ids")).content == "from ids"
        with pytest.raises(ValueError, match="2 logprobs for 3 ids"):
            worker.say("x", ids=[1, 2, 3], logprobs=[-1.0, -2.0])


def test_experts_are_different_within_a_layer_and_start_where_asked() -> None:
    experts = Experts(layers=3, top_k=4, count=64)
    ids = list(range(1000, 1020))
    rows = np.array(experts.rows(ids)).reshape(19, 3, 4)
    assert all(len(set(layer)) == 4 for row in rows.tolist() for layer in row)
    assert base64.b64decode(experts.to_sglang(ids)) == rows.astype("<i4").tobytes()
    assert np.load(io.BytesIO(base64.b64decode(experts.to_vllm(ids, 5)))).tolist() == rows[5:].tolist()
    assert np.load(io.BytesIO(base64.b64decode(Experts(count=512).to_vllm(ids)))).dtype == np.dtype("<u2")
