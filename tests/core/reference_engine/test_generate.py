"""POST /generate, as SGLang answers it."""

import asyncio
from typing import Any

import numpy as np
import pytest

from router_core.reference_engine.recompute import recompute

PROMPT = [1015, 85, 82, 999, 12, 64, 7, 300, 301, 302, 303]


def ids_of(logprobs: list[list[Any]]) -> list[int]:
    return [entry[1] for entry in logprobs]


async def test_an_answer_has_the_shape_of_sglang(client: Any) -> None:
    answer = await client.generate(input_ids=PROMPT, sampling_params={"max_new_tokens": 4, "ignore_eos": True}, rid="r")
    info = answer["meta_info"]
    assert list(answer) == ["text", "output_ids", "meta_info"]
    assert info["id"] == "r"
    assert info["finish_reason"] == {"type": "length", "length": 4}
    assert (info["prompt_tokens"], info["completion_tokens"], info["cached_tokens"]) == (len(PROMPT), 4, 0)
    assert info["weight_version"] == "default"
    assert info["weight_versions"] == [{"version": "default", "start": 0, "end": 4}]
    assert info["e2e_latency"] > 0
    assert "output_token_logprobs" not in info
    assert "routed_experts" not in info
    assert answer["text"] == client.engine.tokenizer.decode(answer["output_ids"])


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
async def test_logprobs_and_experts_are_the_models(client: Any, decode_experts: Any, temperature: float) -> None:
    answer = await client.generate(
        input_ids=PROMPT,
        sampling_params={"max_new_tokens": 30, "temperature": temperature, "ignore_eos": True},
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=3,
        return_routed_experts=True,
    )
    output, info = answer["output_ids"], answer["meta_info"]
    sequence = PROMPT + output
    truth = recompute(client.engine.model, sequence[:-1], temperature or 1.0)
    rows = truth.logprobs[len(PROMPT) - 1 :]
    assert ids_of(info["output_token_logprobs"]) == output
    assert info["output_token_logprobs_length"] == 30
    for (logprob, token_id, text), top, row in zip(
        info["output_token_logprobs"], info["output_top_logprobs"], rows, strict=True
    ):
        assert (logprob, text) == (float(np.float32(row[token_id])), None)
        assert [entry[1] for entry in top] == np.argsort(-row, kind="stable")[:3].tolist()
        assert top[0][0] == float(np.float32(row.max()))
    raw = recompute(client.engine.model, PROMPT).logprobs
    given = [entry[0] for entry in info["input_token_logprobs"]]
    assert ids_of(info["input_token_logprobs"]) == PROMPT
    assert given == [None, *(float(np.float32(row[token])) for row, token in zip(raw, PROMPT[1:], strict=False))]
    assert info["input_top_logprobs"][0] is None
    assert np.array_equal(decode_experts(info["routed_experts"]), truth.experts)
    assert len(truth.experts) == len(sequence) - 1


async def test_greedy_takes_the_likeliest(client: Any) -> None:
    answer = await client.generate(input_ids=PROMPT, sampling_params={"max_new_tokens": 10, "temperature": 0})
    output = answer["output_ids"]
    rows = recompute(client.engine.model, PROMPT + output).logprobs[len(PROMPT) - 1 : -1]
    assert output == rows.argmax(axis=-1).tolist()


async def test_text_is_encoded_and_given_back_in_logprobs(client: Any) -> None:
    tokenizer = client.engine.tokenizer
    answer = await client.generate(
        text="<|im_start|>user\nhi<|im_end|>\n",
        sampling_params={"max_new_tokens": 3, "ignore_eos": True},
        return_logprob=True,
        return_text_in_logprobs=True,
        logprob_start_len=0,
    )
    info = answer["meta_info"]
    prompt = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n")
    assert ids_of(info["input_token_logprobs"]) == prompt
    assert info["input_token_logprobs"][0][2] == "<|im_start|>"


async def test_experts_from_a_start_are_the_last_rows(client: Any, decode_experts: Any) -> None:
    params = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": PROMPT, "sampling_params": params, "return_routed_experts": True}
    whole = await client.generate(**body)
    part = await client.generate(**body, routed_experts_start_len=5)
    first, rest = (decode_experts(answer["meta_info"]["routed_experts"]) for answer in (whole, part))
    assert len(first) == len(PROMPT) + 6 - 1
    assert np.array_equal(first[5:], rest)


async def test_a_cached_prompt_changes_nothing_but_the_count(client: Any) -> None:
    body: dict[str, Any] = {
        "input_ids": PROMPT,
        "sampling_params": {"max_new_tokens": 12, "sampling_seed": 5, "ignore_eos": True},
        "return_logprob": True,
        "return_routed_experts": True,
    }
    first, second = await client.generate(**body), await client.generate(**body)
    assert (first["meta_info"]["cached_tokens"], second["meta_info"]["cached_tokens"]) == (0, len(PROMPT) - 1)
    assert second["meta_info"]["cached_tokens_details"] == {"device": len(PROMPT) - 1, "host": 0}
    for key in ("output_token_logprobs", "routed_experts"):
        assert first["meta_info"][key] == second["meta_info"][key]


async def test_a_next_turn_finds_the_last_one_in_the_cache(client: Any) -> None:
    first = await client.generate(input_ids=PROMPT, sampling_params={"max_new_tokens": 9, "ignore_eos": True})
    second = await client.generate(
        input_ids=[*PROMPT, *first["output_ids"], 5, 6], sampling_params={"max_new_tokens": 1}
    )
    assert second["meta_info"]["cached_tokens"] == len(PROMPT) + 8


async def test_company_changes_no_answer(client: Any) -> None:
    body: dict[str, Any] = {"return_logprob": True, "return_routed_experts": True}

    def asked(number: int) -> Any:
        params = {"max_new_tokens": 20 + number, "sampling_seed": number, "ignore_eos": True}
        return client.generate(input_ids=PROMPT[: 4 + number % 7], sampling_params=params, **body)

    together = await asyncio.gather(*(asked(number) for number in range(12)))
    for number, answer in enumerate(together):
        alone = await asked(number)
        assert alone["output_ids"] == answer["output_ids"]
        assert alone["meta_info"]["output_token_logprobs"] == answer["meta_info"]["output_token_logprobs"]
        assert alone["meta_info"]["routed_experts"] == answer["meta_info"]["routed_experts"]


async def test_a_batch_and_siblings_are_answered_by_a_list(client: Any) -> None:
    params = {"max_new_tokens": 3, "ignore_eos": True}
    batch = await client.generate(input_ids=[PROMPT, PROMPT[:6]], sampling_params=params)
    assert [answer["meta_info"]["prompt_tokens"] for answer in batch] == [11, 6]
    one = await client.generate(input_ids=[PROMPT], sampling_params=params)
    assert isinstance(one, list)
    siblings = await client.generate(input_ids=PROMPT, sampling_params=params | {"n": 3, "sampling_seed": 1})
    assert len({tuple(answer["output_ids"]) for answer in siblings}) == 3
    texts = await client.generate(text=["a", "b"], sampling_params=[params, params | {"max_new_tokens": 1}])
    assert [answer["meta_info"]["completion_tokens"] for answer in texts] == [3, 1]


async def test_a_stream_ends_as_the_plain_answer(client: Any) -> None:
    body: dict[str, Any] = {
        "input_ids": PROMPT,
        "sampling_params": {"max_new_tokens": 25, "sampling_seed": 2, "ignore_eos": True},
        "return_logprob": True,
        "return_routed_experts": True,
        "rid": "r",
    }
    plain = await client.generate(**body)
    chunks = await client.events("/generate", body | {"stream": True})
    for early in chunks[:-1]:
        info = early["meta_info"]
        assert info["finish_reason"] is None
        assert "routed_experts" not in info
        assert "weight_versions" not in info
        count = info["completion_tokens"]
        assert early["output_ids"] == plain["output_ids"][:count]
        assert plain["text"].startswith(early["text"])
        assert info["output_token_logprobs"] == plain["meta_info"]["output_token_logprobs"][:count]
    assert len(chunks) > 5
    for answer in (plain, chunks[-1]):
        for timing in [key for key in answer["meta_info"] if key.endswith(("_ts", "_latency", "_throughput"))]:
            del answer["meta_info"][timing]
        del answer["meta_info"]["cached_tokens"], answer["meta_info"]["cached_tokens_details"]
    assert chunks[-1] == plain


async def test_a_stream_has_a_chunk_for_each_token(client: Any) -> None:
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 9, "ignore_eos": True}, "stream": True}
    chunks = await client.events("/generate", body)
    assert [chunk["meta_info"]["completion_tokens"] for chunk in chunks] == list(range(1, 10))


async def test_null_asks_for_as_many_tokens_as_there_is_room_for(serving: Any) -> None:
    async with serving(context_length=30) as client:
        answer = await client.generate(input_ids=PROMPT, sampling_params={"max_new_tokens": None, "ignore_eos": True})
        assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 30 - len(PROMPT)}


async def test_a_streamed_batch_numbers_its_chunks(client: Any) -> None:
    body = {
        "input_ids": [PROMPT, PROMPT[:6]],
        "sampling_params": {"max_new_tokens": 3, "ignore_eos": True},
        "stream": True,
    }
    chunks = await client.events("/generate", body)
    ends = [chunk for chunk in chunks if chunk["meta_info"]["finish_reason"]]
    assert sorted(chunk["index"] for chunk in ends) == [0, 1]


async def test_the_same_seed_gives_the_same_words(client: Any) -> None:
    params = {"max_new_tokens": 20, "sampling_seed": 9, "ignore_eos": True}
    first = await client.generate(input_ids=PROMPT, sampling_params=params)
    second = await client.generate(input_ids=PROMPT, sampling_params=params)
    other = await client.generate(input_ids=PROMPT, sampling_params=params | {"sampling_seed": 10})
    assert first["output_ids"] == second["output_ids"] != other["output_ids"]


async def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(client: Any) -> None:
    params = {"max_new_tokens": 40, "sampling_seed": 9, "ignore_eos": True}
    whole = await client.generate(input_ids=PROMPT, sampling_params=params, return_logprob=True)
    half = await client.generate(input_ids=PROMPT, sampling_params=params | {"max_new_tokens": 17})
    rest = await client.generate(
        input_ids=PROMPT + half["output_ids"], sampling_params=params | {"max_new_tokens": 23}, return_logprob=True
    )
    assert half["output_ids"] + rest["output_ids"] == whole["output_ids"]
    assert rest["meta_info"]["output_token_logprobs"] == whole["meta_info"]["output_token_logprobs"][17:]


async def test_a_turn_ends_with_its_end_token(client: Any) -> None:
    eos = client.engine.tokenizer.eos_id
    answers = await client.generate(input_ids=PROMPT, sampling_params={"max_new_tokens": 400, "n": 4})
    for answer in answers:
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": eos}
        assert answer["output_ids"].index(eos) == len(answer["output_ids"]) - 1
        assert len(answer["meta_info"]["weight_versions"]) == 1


async def test_stop_ids_stay_in_the_ids(client: Any) -> None:
    params = {"max_new_tokens": 30, "sampling_seed": 1, "temperature": 0.0}
    free = (await client.generate(input_ids=PROMPT, sampling_params=params))["output_ids"]
    answer = await client.generate(input_ids=PROMPT, sampling_params=params | {"stop_token_ids": [free[4]]})
    assert answer["output_ids"] == free[: free.index(free[4]) + 1]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": free[4]}
    ignored = await client.generate(
        input_ids=PROMPT, sampling_params=params | {"stop_token_ids": [free[4]], "ignore_eos": True}
    )
    assert len(ignored["output_ids"]) == 30


@pytest.mark.parametrize("no_stop_trim", [False, True])
async def test_a_stop_text_is_cut_off_unless_it_is_wanted(client: Any, no_stop_trim: bool) -> None:
    script = client.engine.tokenizer.encode("one two three four")
    headers = {"x-reference-script": str(script)}
    body = {"text": "count", "sampling_params": {"stop": ["five", "wo thr"], "no_stop_trim": no_stop_trim}}
    _, answer = await client.post("/generate", body, headers)
    assert answer["text"] == ("one two thr" if no_stop_trim else "one t")
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "wo thr"}
    assert answer["output_ids"] == script[: len(answer["output_ids"])]


async def test_a_least_length_holds_off_the_end(client: Any) -> None:
    params = {"max_new_tokens": 60, "min_new_tokens": 60}
    answer = await client.generate(input_ids=PROMPT, sampling_params=params)
    assert client.engine.tokenizer.eos_id not in answer["output_ids"]
    assert len(answer["output_ids"]) == 60


async def test_no_new_tokens_only_scores_the_prompt(client: Any, decode_experts: Any) -> None:
    answer = await client.generate(
        input_ids=PROMPT,
        sampling_params={"max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=4,
        return_routed_experts=True,
    )
    assert answer["output_ids"] == []
    assert len(answer["meta_info"]["input_token_logprobs"]) == len(PROMPT) - 4
    assert len(decode_experts(answer["meta_info"]["routed_experts"])) == len(PROMPT) - 1


async def test_scripted_words_have_true_logprobs_and_experts(client: Any, decode_experts: Any) -> None:
    tokenizer = client.engine.tokenizer
    headers = {"x-reference-script": '"Paris, of course."'}
    body = {"input_ids": PROMPT, "return_logprob": True, "return_routed_experts": True}
    _, answer = await client.post("/generate", body, headers)
    words = [*tokenizer.encode("Paris, of course."), tokenizer.eos_id]
    assert answer["output_ids"] == words
    assert answer["text"] == "Paris, of course."
    truth = recompute(client.engine.model, PROMPT + words[:-1])
    given = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
    assert given == [
        float(np.float32(row[word])) for row, word in zip(truth.logprobs[len(PROMPT) - 1 :], words, strict=True)
    ]
    assert np.array_equal(decode_experts(answer["meta_info"]["routed_experts"]), truth.experts)


@pytest.mark.parametrize("script", ["[1, 5000]", "[1", '{"a": 1}'])
async def test_a_script_that_is_none_is_refused(client: Any, script: str) -> None:
    status, _ = await client.post("/generate", {"input_ids": PROMPT}, {"x-reference-script": script})
    assert status == 400


async def test_an_engine_can_be_scripted_as_a_whole(serving: Any) -> None:
    async with serving(script=lambda prompt: [*prompt[::-1], 1017] if len(prompt) > 2 else None) as client:
        answer = await client.generate(input_ids=[1, 2, 3])
        assert answer["output_ids"] == [3, 2, 1, 1017]
        free = await client.generate(input_ids=[1, 2], sampling_params={"max_new_tokens": 2, "ignore_eos": True})
        assert len(free["output_ids"]) == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "Either text, input_ids or input_embeds should be provided."),
        ({"input_ids": [1, 1024]}, "id 1024 is outside the vocabulary (0 to 1023)"),
        ({"input_ids": [-1]}, "id -1 is outside the vocabulary"),
        ({"input_ids": "abc"}, "input_ids must be a list of token ids"),
        ({"input_ids": [1, "a"]}, "input_ids must be a list of token ids"),
        ({"input_ids": []}, "input_ids cannot be empty."),
        ({"text": ""}, "input_ids cannot be empty."),
        ({"text": 5}, "text must be a string"),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": -3}}, "max_new_tokens must be at least 0, got -3."),
        ({"input_ids": [1], "sampling_params": {"max_tokens": 3}}, "unknown field `max_tokens`"),
        ({"input_ids": [1], "sampling_params": 7}, "sampling_params must be an object"),
        ({"input_ids": [1], "return_logprob": "yes"}, "return_logprob must be true or false"),
        ({"input_ids": [1], "return_logprob": True, "logprob_start_len": 2}, "logprob_start_len=2 is higher"),
        ({"input_ids": [1], "routed_experts_start_len": 2}, "routed_experts_start_len=2 is higher"),
        ({"input_ids": [[1], [2]], "rid": ["a"]}, "rid must be a string"),
        (
            {"input_ids": [1] * 40000},
            "The input (40000 tokens) is longer than the model's context length (32768 tokens).",
        ),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": 32768}}, "Requested token count exceeds"),
    ],
)
async def test_a_bad_request_is_a_clean_400(client: Any, body: dict[str, Any], said: str) -> None:
    status, answer = await client.post("/generate", body)
    assert status == 400
    assert said in (answer["error"]["message"] if "error" in answer else answer["message"])
    assert client.engine.running_requests == client.engine.waiting_requests == 0


async def test_a_body_that_is_no_json_is_a_clean_400(client: Any) -> None:
    async with client.http.post("/generate", data=b"{") as response:
        assert response.status == 400
        assert "not JSON" in (await response.json())["message"]
    assert (await client.post("/generate", [1]))[0] == 400
