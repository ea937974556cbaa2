"""The wire of SGLang 0.5.23: how ``POST /generate`` is asked and answered.

Shapes, defaults and messages are those that a real server of that version gave.
"""

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pybase64

from router_core.reference_engine import fields
from router_core.reference_engine.engine import Engine
from router_core.reference_engine.errors import InvalidFieldError, RequestError, WrongTypeError
from router_core.reference_engine.generation import Generation, GenerationRequest, TokenLogprob, WeightSpan
from router_core.reference_engine.options import EngineOptions
from router_core.reference_engine.sampling import SamplingParams, read_sampling_params, refuse_unknown
from router_core.reference_engine.script import scripted

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request wants to see in its answer."""

    logprobs: bool = False
    text_in_logprobs: bool = False
    top_logprobs: int = 0
    input_logprobs_from: int | None = None
    routed_experts: bool = False
    routed_experts_from: int = 0
    stream: bool = False
    reasoning_tokens: int = 0
    """How many of the tokens are thinking; 0 where nothing tells thinking apart."""


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """One ``POST /generate``: the requests it makes, and whether it is answered by a list."""

    requests: list[GenerationRequest]
    wishes: Wishes
    is_list: bool


def read_generate(body: Body, engine: Engine, script: list[int] | None = None) -> GenerateCall:
    """Read the body of ``POST /generate``; a batch of prompts, or ``n`` above 1, is answered by a list."""
    prompts, is_list = _prompts(body, engine)
    wishes = _wishes(body, min(map(len, prompts)), engine.options)
    sampling = _sampling_of_each(body, engine, len(prompts))
    rids = _rids(body, len(prompts))
    requests = [
        GenerationRequest(
            rid=rid if params.n == 1 else f"{rid}_{number}",
            prompt_ids=prompt,
            sampling=params.sibling(number),
            input_logprobs_from=wishes.input_logprobs_from,
            top_logprobs=wishes.top_logprobs,
            script=scripted(prompt, script, engine.options.script),
        )
        for prompt, params, rid in zip(prompts, sampling, rids, strict=True)
        for number in range(params.n)
    ]
    return GenerateCall(requests, wishes, is_list or len(requests) > 1)


def _prompts(body: Body, engine: Engine) -> tuple[list[list[int]], bool]:
    """Return the ids of each prompt, and whether a list was given."""
    text, ids = body.get("text"), body.get("input_ids")
    if text is None and ids is None:
        raise RequestError("Either text, input_ids or input_embeds should be provided.")
    if ids is None:
        listed = fields.texts(body, "text")
        if not listed:
            raise InvalidFieldError("text", "text must not be an empty list.")
        return [engine.tokenizer.encode(item) for item in listed], not isinstance(text, str)
    size = engine.model.config.vocab_size
    if isinstance(ids, list) and ids and isinstance(ids[0], list):
        return [fields.ids(item, "input_ids", size) for item in ids], True
    return [fields.ids(ids, "input_ids", size)], False


def _wishes(body: Body, shortest_prompt: int, options: EngineOptions) -> Wishes:
    logprobs = fields.flag(body, "return_logprob")
    start = fields.integer(body, "logprob_start_len", -1, at_least=-1)
    experts_from = fields.integer(body, "routed_experts_start_len", 0, at_least=0)
    for name, value in (("logprob_start_len", start if logprobs else -1), ("routed_experts_start_len", experts_from)):
        if value > shortest_prompt:
            raise InvalidFieldError(
                name,
                f"{name}={value} is higher than the number of input tokens ({shortest_prompt}). "
                f"Please use a smaller {name}.",
            )
    return Wishes(
        logprobs=logprobs,
        text_in_logprobs=fields.flag(body, "return_text_in_logprobs"),
        top_logprobs=fields.integer(body, "top_logprobs_num", 0, at_least=0) if logprobs else 0,
        input_logprobs_from=start if logprobs and 0 <= start < shortest_prompt else None,
        routed_experts=fields.flag(body, "return_routed_experts") and options.routed_experts,
        routed_experts_from=experts_from,
        stream=fields.flag(body, "stream"),
    )


def _sampling_of_each(body: Body, engine: Engine, count: int) -> list[SamplingParams]:
    given = body.get("sampling_params") or {}
    listed = given if isinstance(given, list) else [given] * count
    if len(listed) != count or not all(isinstance(item, Mapping) for item in listed):
        raise WrongTypeError("sampling_params", "sampling_params must be an object, or a list of one for each prompt.")
    for item in listed:
        refuse_unknown(item)
    return [read_sampling_params(item, engine.model.config.vocab_size) for item in listed]


def _rids(body: Body, count: int) -> list[str]:
    given = body.get("rid")
    if given is None:
        return [uuid.uuid4().hex for _ in range(count)]
    if isinstance(given, str):
        return [given] if count == 1 else [f"{given}_{number}" for number in range(count)]
    if not isinstance(given, list) or len(given) != count or not all(isinstance(item, str) for item in given):
        raise WrongTypeError("rid", "rid must be a string, or a list of one for each prompt.")
    return given


async def chunks(generation: Generation, wishes: Wishes, engine: Engine) -> AsyncIterator[dict[str, Any]]:
    """Yield the answer again and again as it grows: text, ids and logprobs are always those since the beginning."""
    seen = -1
    async for _ in generation.progress():
        if generation.is_finished or generation.shown_tokens > seen:
            seen = generation.shown_tokens
            yield answer(generation, wishes, engine)


def answer(generation: Generation, wishes: Wishes, engine: Engine) -> dict[str, Any]:
    """Return what ``/generate`` says of a request, finished or not."""
    return {
        "text": generation.text[: generation.shown_characters],
        "output_ids": generation.output_ids[: generation.shown_tokens],
        "meta_info": meta_info(generation, wishes, engine),
    }


def meta_info(generation: Generation, wishes: Wishes, engine: Engine) -> dict[str, Any]:
    """Return ``meta_info``; spans of weight versions and routed experts are in it only once it is finished."""
    timings = generation.timings
    info: dict[str, Any] = {
        "id": generation.request.rid,
        "finish_reason": generation.finish_reason,
        "prompt_tokens": len(generation.request.prompt_ids),
        "weight_version": engine.weight_version,
        "num_retractions": generation.retractions,
    }
    if wishes.logprobs:
        info |= _logprobs(generation, wishes, engine)
    info["reasoning_tokens"] = wishes.reasoning_tokens
    info["completion_tokens"] = generation.shown_tokens
    info["cached_tokens"] = generation.cached_tokens
    if generation.is_finished:
        info["weight_versions"] = weight_versions(generation, engine)
    cached = generation.cached_tokens
    info["cached_tokens_details"] = {"device": cached, "host": 0} if cached else None
    if generation.is_finished and wishes.routed_experts:
        info["routed_experts"] = routed_experts(generation, wishes.routed_experts_from)
    info["dp_rank"] = None
    if timings.finished is not None:
        info["e2e_latency"] = timings.finished - timings.received
        info["request_received_ts"] = timings.received
        if timings.first_token is not None:
            info["first_token_latency"] = timings.first_token - timings.received
            seconds = timings.finished - timings.first_token
            info["decode_throughput"] = (len(generation.output_ids) - 1) / seconds if seconds > 0 else None
        info["request_finished_ts"] = timings.finished
        info["response_sent_to_client_ts"] = time.time()
    return info


def weight_versions(generation: Generation, engine: Engine) -> list[dict[str, Any]]:
    """Return which version sampled which of the output tokens; without any, one empty span."""
    spans = generation.weight_spans or [WeightSpan(engine.weight_version, 0, 0)]
    return [{"version": span.version, "start": span.start, "end": span.end} for span in spans]


def routed_experts(generation: Generation, start: int) -> str:
    """Return base64 of little-endian int32[prompt + completion - 1 - start, num_layers, top_k]."""
    rows = generation.experts()[start:]
    return pybase64.b64encode(rows.astype("<i4").tobytes()).decode("ascii")


def _logprobs(generation: Generation, wishes: Wishes, engine: Engine) -> dict[str, Any]:
    """Return the logprob keys: entries of [logprob, id, text or null]."""

    def entry(told: TokenLogprob) -> list[Any]:
        text = engine.tokenizer.decode([told.token_id], skip_special_tokens=False) if wishes.text_in_logprobs else None
        return [told.logprob, told.token_id, text]

    def first(position: int) -> list[Any]:
        return [None, *entry(TokenLogprob(generation.request.prompt_ids[position], 0.0, 1))[1:]]

    prompt, start = generation.prompt_logprobs, wishes.input_logprobs_from or 0
    sampled = generation.sampled[: generation.shown_tokens]
    info: dict[str, Any] = {
        "input_token_logprobs": [first(start) if told is None else entry(told.token) for told in prompt],
        "output_token_logprobs": [entry(told.token) for told in sampled],
        "output_token_logprobs_length": len(sampled),
    }
    if wishes.top_logprobs:
        info["input_top_logprobs"] = [None if told is None else [entry(top) for top in told.top] for told in prompt]
        info["output_top_logprobs"] = [[entry(top) for top in told.top] for told in sampled]
    return info
