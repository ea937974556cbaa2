"""Reads the bodies of ``/v1/chat/completions`` and ``/v1/completions``, in either dialect."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from router_core.reference_engine import fields
from router_core.reference_engine.chat_prompt import is_thinking, prompt_ids
from router_core.reference_engine.engine import Engine
from router_core.reference_engine.errors import InvalidFieldError, RequestError, UnknownModelError
from router_core.reference_engine.generation import GenerationRequest
from router_core.reference_engine.sampling import SamplingParams, read_sampling_params
from router_core.reference_engine.script import scripted

_DEFAULT_COMPLETION_TOKENS = 16


@dataclass(frozen=True, slots=True)
class OpenAiCall:
    """One call: the requests it makes, ``n`` for each prompt, and what its answer must hold."""

    id: str
    model: str
    requests: list[GenerationRequest]
    n: int
    stream: bool
    wants_usage: bool
    """The stream tells the usage at its end."""
    logprobs: bool
    top_logprobs: int
    routed_experts: bool
    routed_experts_from: int
    is_thinking: bool
    """The answer is split into thinking and content."""
    parses_tools: bool
    body: fields.Fields
    """The whole request; each dialect reads its own flags of it."""

    def asks(self, name: str) -> bool:
        """Return a flag of the request that only this dialect knows."""
        return fields.flag(self.body, name)


def read_chat(body: fields.Fields, engine: Engine, request_id: str | None, script: list[int] | None) -> OpenAiCall:
    """Read a chat request; ``request_id`` and ``script`` came as headers."""
    options = engine.options
    prompt = prompt_ids(body, engine.tokenizer, engine.model.config.vocab_size, options.dialect)
    most = body.get("max_completion_tokens")
    name = "max_tokens" if most is None else "max_completion_tokens"
    logprobs = fields.flag(body, "logprobs")
    top = fields.integer(body, "top_logprobs", 0, at_least=0) if logprobs else 0
    has_tools = bool(body.get("tools")) and body.get("tool_choice") != "none"
    splits = fields.flag(body, "separate_reasoning", True) and options.reasoning_parser
    return _call(
        body,
        engine,
        prompts=[prompt],
        call_id=_call_id(body, engine, request_id, "chatcmpl"),
        max_new_tokens=_max_tokens(body, name, None, engine),
        script=script,
        logprobs=logprobs,
        top_logprobs=top,
        is_thinking=splits and is_thinking(body),
        parses_tools=options.tool_call_parser and has_tools,
    )


def read_completion(
    body: fields.Fields, engine: Engine, request_id: str | None, script: list[int] | None
) -> OpenAiCall:
    """Read a completion request; its prompt is a text, ids, or a list of either."""
    return _call(
        body,
        engine,
        prompts=_prompts(body.get("prompt"), engine),
        call_id=_call_id(body, engine, request_id, "cmpl"),
        max_new_tokens=_max_tokens(body, "max_tokens", _DEFAULT_COMPLETION_TOKENS, engine),
        script=script,
        logprobs=body.get("logprobs") is not None,
        top_logprobs=fields.integer(body, "logprobs", 0, at_least=0),
        is_thinking=False,
        parses_tools=False,
    )


def _call(
    body: fields.Fields,
    engine: Engine,
    *,
    prompts: list[list[int]],
    call_id: str,
    max_new_tokens: int | None,
    script: list[int] | None,
    logprobs: bool,
    top_logprobs: int,
    is_thinking: bool,
    parses_tools: bool,
) -> OpenAiCall:
    options = engine.options
    model = fields.text(body, "model", options.served_model_name)
    if options.dialect == "vllm" and model != options.served_model_name:
        raise UnknownModelError(model, options.served_model_name)
    sampling = _sampling(body, engine, max_new_tokens)
    prompt_logprobs = body.get("prompt_logprobs") if options.dialect == "vllm" else None
    start_name = "routed_experts_start_len" if options.dialect == "sglang" else "routed_experts_prompt_start"
    is_asked = options.dialect == "vllm" or fields.flag(body, "return_routed_experts")
    experts_from = fields.integer(body, start_name, 0, at_least=0)
    if options.dialect == "vllm" and experts_from >= min(map(len, prompts)) > 0:
        raise InvalidFieldError(
            start_name, f"{start_name} must be less than the number of prompt tokens, got {experts_from}."
        )
    many = len(prompts) * sampling.n > 1
    requests = [
        GenerationRequest(
            rid=f"{call_id}_{index * sampling.n + number}" if many else call_id,
            prompt_ids=prompt,
            sampling=sampling.sibling(number),
            group=call_id,
            input_logprobs_from=None if prompt_logprobs is None else 0,
            top_logprobs=max(top_logprobs, fields.integer(body, "prompt_logprobs", 0, at_least=0)),
            dialect=options.dialect,
            script=scripted(prompt, script, options.script),
        )
        for index, prompt in enumerate(prompts)
        for number in range(sampling.n)
    ]
    return OpenAiCall(
        id=call_id,
        model=model,
        requests=requests,
        n=sampling.n,
        stream=fields.flag(body, "stream"),
        wants_usage=fields.flag(fields.mapping(body, "stream_options"), "include_usage"),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        routed_experts=is_asked and options.routed_experts,
        routed_experts_from=experts_from,
        is_thinking=is_thinking,
        parses_tools=parses_tools,
        body=body,
    )


def _call_id(body: fields.Fields, engine: Engine, request_id: str | None, prefix: str) -> str:
    if engine.options.dialect == "sglang":
        return fields.text(body, "rid", uuid.uuid4().hex)
    return f"{prefix}-{request_id or fields.text(body, 'request_id', uuid.uuid4().hex[:16])}"


def _max_tokens(body: fields.Fields, name: str, default: int | None, engine: Engine) -> int | None:
    if body.get(name) is None:
        return default
    wanted = fields.integer(body, name, 0, at_least=1 if engine.options.dialect == "vllm" else 0)
    limit = engine.options.context_length
    if engine.options.dialect == "vllm" and wanted > limit:
        said = f"{name}={wanted} cannot be greater than max_model_len={limit}. Please request fewer output tokens."
        raise InvalidFieldError(name, f"{said} (parameter={name}, value={wanted})")
    return wanted


def _sampling(body: fields.Fields, engine: Engine, max_new_tokens: int | None) -> SamplingParams:
    """Return the sampling parameters; OpenAI's names are turned into SGLang's."""
    response_format = fields.mapping(body, "response_format").get("type", "text")
    if response_format != "text":
        raise InvalidFieldError("response_format", f"response_format {response_format!r} is not supported here.")
    no_trim = "no_stop_trim" if engine.options.dialect == "sglang" else "include_stop_str_in_output"
    renamed: Mapping[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": body.get("min_tokens"),
        "sampling_seed": body.get("seed"),
        "no_stop_trim": body.get(no_trim),
        # vLLM writes "the whole vocabulary" as 0.
        "top_k": body.get("top_k") or None,
    }
    return read_sampling_params({**body, **renamed}, engine.model.config.vocab_size)


def _prompts(prompt: Any, engine: Engine) -> list[list[int]]:
    if not prompt:
        raise RequestError("Prompt cannot be empty")
    if isinstance(prompt, str):
        return [engine.tokenizer.encode(prompt)]
    if isinstance(prompt, list) and isinstance(prompt[0], str):
        return [engine.tokenizer.encode(text) for text in fields.texts({"prompt": prompt}, "prompt")]
    size = engine.model.config.vocab_size
    if isinstance(prompt, list) and isinstance(prompt[0], list):
        return [fields.ids(item, "prompt", size) for item in prompt]
    return [fields.ids(prompt, "prompt", size)]
