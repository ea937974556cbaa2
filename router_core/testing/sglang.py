"""The shapes in which SGLang answers (0.5.23)."""

from collections.abc import Iterator
from typing import Any

from router_core.testing.generation import Event, Generation

CREATED = 1700000000
STREAM_REFUSES = ("return_token_ids", "return_prompt_token_ids", "return_meta_info")


def generate(generation: Generation) -> dict[str, Any]:
    """The answer of ``POST /generate``."""
    return _generate_at(generation, generation.count, is_last=True)


def generate_stream(generation: Generation) -> Iterator[Event]:
    """Cumulative: each event repeats what came before; weight versions and routed experts only in the last."""
    at = 1
    while at < generation.count:
        yield at, _generate_at(generation, at, is_last=False)
        at += 1
    yield generation.count, _generate_at(generation, generation.count, is_last=True)


def chat(generation: Generation) -> dict[str, Any]:
    """The answer of ``POST /v1/chat/completions``."""
    body = generation.body
    message: dict[str, Any] = {
        "role": "assistant",
        "content": generation.text("content"),
        "reasoning_content": generation.text("reasoning") or None,
    }
    if generation.shows_tool_calls:
        message["tool_calls"] = generation.tool_calls()
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": generation.chat_finish(),
        "matched_stop": _matched(generation),
    }
    if body.get("logprobs"):
        choice["logprobs"] = {"content": [_token(generation, at) for at in range(generation.count)]}
    if body.get("return_prompt_token_ids"):
        choice["prompt_token_ids"] = generation.prompt_ids
    if body.get("return_token_ids") or body.get("return_completion_token_ids"):
        choice["response_token_ids"] = generation.words.ids[: generation.count]
    if body.get("return_meta_info"):
        with_logprobs = bool(body.get("logprobs"))
        choice["meta_info"] = _meta(generation, generation.count, is_last=True, with_logprobs=with_logprobs)
    answer = {**_chat_frame(generation, "chat.completion"), "choices": [choice], "usage": _chat_usage(generation)}
    answer["metadata"] = {"weight_version": generation.weight_version, "weight_versions": _weight_versions(generation)}
    extension = _extension(generation)
    return {**answer, "sglext": extension} if extension else answer


def chat_stream(generation: Generation) -> Iterator[Event]:
    frame = _chat_frame(generation, "chat.completion.chunk")

    def event(delta: dict[str, Any], logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
        choice = {
            "index": 0,
            "delta": {"reasoning_content": None, **delta},
            "logprobs": logprobs,
            "finish_reason": finish,
        }
        return {**frame, "choices": [{**choice, "matched_stop": _matched(generation) if finish else None}]}

    yield 0, event({"role": "assistant", "content": ""})
    for at, delta in generation.deltas("reasoning_content"):
        logprobs = {"content": [_token(generation, at)]} if generation.body.get("logprobs") else None
        if delta or logprobs:
            yield at + 1, event(delta, logprobs)
    yield generation.count, event({}, finish=generation.chat_finish())
    if extension := _extension(generation):
        yield generation.count, {**frame, "choices": [], "usage": None, "sglext": extension}
    if (generation.body.get("stream_options") or {}).get("include_usage"):
        yield generation.count, {**frame, "choices": [], "usage": _chat_usage(generation)}


def error(message: str, status: int = 400) -> dict[str, Any]:
    """An error of its ``/v1`` paths."""
    return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": status}


def _generate_at(generation: Generation, count: int, *, is_last: bool) -> dict[str, Any]:
    return {
        "text": "".join(generation.words.pieces[:count]),
        "output_ids": generation.words.ids[:count],
        "meta_info": _meta(
            generation, count, is_last=is_last, with_logprobs=bool(generation.body.get("return_logprob"))
        ),
    }


def _meta(generation: Generation, count: int, *, is_last: bool, with_logprobs: bool) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": generation.rid,
        "finish_reason": _finish_reason(generation) if is_last else None,
        "prompt_tokens": len(generation.prompt_ids),
        "weight_version": generation.weight_version,
        "num_retractions": 0,
    }
    if with_logprobs:
        meta["input_token_logprobs"] = []
        meta["output_token_logprobs"] = _output_token_logprobs(generation, count)
        meta["output_token_logprobs_length"] = count
    meta |= {"reasoning_tokens": 0, "completion_tokens": count, "cached_tokens": 0}
    if is_last:
        meta["weight_versions"] = _weight_versions(generation)
    meta["cached_tokens_details"] = None
    if is_last and (experts := _routed_experts(generation)) is not None:
        meta["routed_experts"] = experts
    meta["dp_rank"] = None
    return {**meta, "e2e_latency": 0.01} if is_last else meta


def _output_token_logprobs(generation: Generation, count: int) -> list[list[Any]]:
    """``[logprob, id, text or null]`` for each token; the text when asked for, as chat always does."""
    with_text = bool(generation.body.get("return_text_in_logprobs")) or "messages" in generation.body
    words = generation.words
    triples = zip(words.logprobs[:count], words.ids[:count], words.pieces[:count], strict=True)
    return [[logprob, token_id, piece if with_text else None] for logprob, token_id, piece in triples]


def _finish_reason(generation: Generation) -> dict[str, Any]:
    if generation.finish == "abort":
        return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    if generation.finish == "length":
        return {"type": "length", "length": generation.count}
    return {"type": generation.finish, "matched": _matched(generation)}


def _matched(generation: Generation) -> int | None:
    """The end token, where it ended by one."""
    return generation.words.ids[-1] if generation.finish == "stop" and generation.words.ids else None


def _weight_versions(generation: Generation) -> list[dict[str, Any]]:
    return [{"version": generation.weight_version, "start": 0, "end": generation.count}]


def _routed_experts(generation: Generation) -> str | None:
    """Only where the request asks and the server was started with it; else the field is absent, as in the original."""
    if generation.experts is None or not generation.body.get("return_routed_experts"):
        return None
    return generation.experts.to_sglang(generation.sequence, int(generation.body.get("routed_experts_start_len") or 0))


def _extension(generation: Generation) -> dict[str, Any]:
    extension: dict[str, Any] = {}
    if (experts := _routed_experts(generation)) is not None and not generation.body.get("return_meta_info"):
        extension["routed_experts"] = experts
    if generation.body.get("return_input_ids_in_sglext"):
        extension["input_ids"] = generation.prompt_ids
    if generation.body.get("return_output_ids_in_sglext"):
        extension["output_ids"] = [generation.words.ids[: generation.count]]
    return extension


def _token(generation: Generation, at: int) -> dict[str, Any]:
    piece = generation.words.pieces[at]
    return {"token": piece, "bytes": list(piece.encode()), "logprob": generation.words.logprobs[at], "top_logprobs": []}


def _chat_frame(generation: Generation, kind: str) -> dict[str, Any]:
    return {
        "id": generation.rid,
        "object": kind,
        "created": CREATED,
        "model": generation.body.get("model", generation.model),
    }


def _chat_usage(generation: Generation) -> dict[str, Any]:
    return {
        **generation.usage(),
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }
