"""The shapes in which vLLM answers (0.32; routed experts as in 0.29)."""

from collections.abc import Iterator
from typing import Any

from router_core.testing.generation import Event, Generation

CREATED = 1700000000
FINGERPRINT = "vllm-0.32.0-scripted"


def chat(generation: Generation) -> dict[str, Any]:
    """The answer of ``POST /v1/chat/completions``."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": generation.text("content") or None,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": generation.text("reasoning") or None,
    }
    if generation.shows_tool_calls:
        message["tool_calls"] = generation.tool_calls()
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": generation.chat_finish(),
        "stop_reason": None,
    }
    if generation.body.get("logprobs"):
        choice["logprobs"] = {"content": [_token(generation, at) for at in range(generation.count)]}
    choice["token_ids"] = _ids(generation)
    choice["routed_experts"] = _routed_experts(generation)
    return {
        **_frame(generation, "chatcmpl", "chat.completion"),
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": _usage(generation),
        "prompt_logprobs": None,
        "prompt_token_ids": generation.prompt_ids if _wants_ids(generation) else None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def chat_stream(generation: Generation) -> Iterator[Event]:
    """Not cumulative; the prompt's ids in the first event, each token's own in its event; no routed experts."""
    frame = _frame(generation, "chatcmpl", "chat.completion.chunk")
    first: dict[str, Any] = {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    prompt = {"prompt_token_ids": generation.prompt_ids, "prompt_text": None} if _wants_ids(generation) else {}
    yield 0, {**frame, "choices": [first], **prompt}
    for at, delta in generation.deltas("reasoning"):
        is_last = at == generation.count - 1
        choice: dict[str, Any] = {
            "index": 0,
            "delta": delta,
            "logprobs": None,
            "finish_reason": generation.chat_finish() if is_last else None,
        }
        if generation.body.get("logprobs"):
            choice["logprobs"] = {"content": [_token(generation, at)]}
        if is_last:
            choice["stop_reason"] = None
        if _wants_ids(generation):
            choice["token_ids"] = [generation.words.ids[at]]
        yield at + 1, {**frame, "choices": [choice]}
    if generation.is_aborted or not generation.count:
        yield generation.count, {**frame, "choices": [{"index": 0, "delta": {}, **_early_end(generation)}]}
    yield from _usage_event(generation, frame)


def completions(generation: Generation) -> dict[str, Any]:
    """The answer of ``POST /v1/completions``."""
    choice: dict[str, Any] = {
        "index": 0,
        "text": "".join(generation.words.pieces[: generation.count]),
        "logprobs": None,
    }
    if generation.body.get("logprobs") is not None:
        choice["logprobs"] = _completion_logprobs(generation, 0, generation.count)
    choice |= {
        "finish_reason": generation.finish,
        "stop_reason": None,
        "token_ids": _ids(generation),
        "prompt_logprobs": None,
    }
    choice["prompt_token_ids"] = generation.prompt_ids if _wants_ids(generation) else None
    choice["routed_experts"] = _routed_experts(generation)
    return {
        **_frame(generation, "cmpl", "text_completion"),
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": _usage(generation),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def completions_stream(generation: Generation) -> Iterator[Event]:
    frame = _frame(generation, "cmpl", "text_completion")
    at = 0
    while at < generation.count:
        is_last = at == generation.count - 1
        choice: dict[str, Any] = {"index": 0, "text": generation.words.pieces[at], "logprobs": None}
        if generation.body.get("logprobs") is not None:
            choice["logprobs"] = _completion_logprobs(generation, at, at + 1)
        choice |= {"finish_reason": generation.finish if is_last else None, "stop_reason": None}
        if _wants_ids(generation):
            choice["prompt_token_ids"] = generation.prompt_ids if at == 0 else None
            choice["token_ids"] = [generation.words.ids[at]]
        yield at + 1, {**frame, "choices": [choice]}
        at += 1
    if generation.is_aborted or not generation.count:
        yield generation.count, {**frame, "choices": [{"index": 0, "text": "", **_early_end(generation)}]}
    yield from _usage_event(generation, frame)


def error(
    message: str, status: int = 400, *, kind: str = "BadRequestError", param: str | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def _early_end(generation: Generation) -> dict[str, Any]:
    """Of an event without a token: an abort found the last one already sent, or there was none."""
    ids: dict[str, Any] = {"token_ids": []} if _wants_ids(generation) else {}
    return {"logprobs": None, "finish_reason": generation.finish, "stop_reason": None, **ids}


def _wants_ids(generation: Generation) -> bool:
    return bool(generation.body.get("return_token_ids"))


def _ids(generation: Generation) -> list[int] | None:
    return generation.words.ids[: generation.count] if _wants_ids(generation) else None


def _routed_experts(generation: Generation) -> str | None:
    """Whenever the server was started with it; no request asks for it."""
    if generation.experts is None:
        return None
    return generation.experts.to_vllm(generation.sequence, int(generation.body.get("routed_experts_prompt_start") or 0))


def _token_name(generation: Generation, at: int) -> str:
    if generation.body.get("return_tokens_as_token_ids"):
        return f"token_id:{generation.words.ids[at]}"
    return generation.words.pieces[at]


def _token(generation: Generation, at: int) -> dict[str, Any]:
    piece, logprob = generation.words.pieces[at], generation.words.logprobs[at]
    return {"token": _token_name(generation, at), "logprob": logprob, "bytes": list(piece.encode()), "top_logprobs": []}


def _completion_logprobs(generation: Generation, start: int, end: int) -> dict[str, Any]:
    names = [_token_name(generation, at) for at in range(start, end)]
    logprobs = generation.words.logprobs[start:end]
    offsets = [len("".join(generation.words.pieces[:at])) for at in range(start, end)]
    tops = [{name: logprob} for name, logprob in zip(names, logprobs, strict=True)]
    return {"text_offset": offsets, "token_logprobs": logprobs, "tokens": names, "top_logprobs": tops}


def _frame(generation: Generation, prefix: str, kind: str) -> dict[str, Any]:
    model = generation.body.get("model") or generation.model
    return {"id": f"{prefix}-{generation.rid}", "object": kind, "created": CREATED, "model": model}


def _usage(generation: Generation) -> dict[str, Any]:
    return {**generation.usage(), "prompt_tokens_details": None, "completion_tokens_details": None}


def _usage_event(generation: Generation, frame: dict[str, Any]) -> Iterator[Event]:
    if (generation.body.get("stream_options") or {}).get("include_usage"):
        yield generation.count, {**frame, "choices": [], "usage": _usage(generation), "system_fingerprint": FINGERPRINT}
