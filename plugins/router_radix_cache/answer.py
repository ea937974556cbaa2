"""What a worker's answer to /generate says, read and checked: nothing is kept that is not certain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from router_radix_cache.tokens import Span
from router_radix_cache.unusable import Unusable, UnusableError


@dataclass(slots=True)
class Sampled:
    """One finished answer. ``token_ids`` and ``logprobs`` (nats) are equally long and ``spans`` cover them."""

    rid: str | None
    text: str
    token_ids: list[int]
    logprobs: list[float]
    spans: list[Span]


def read_answer(body: bytes, prompt_tokens: int) -> Sampled:
    """The sample in an answer (of a stream: in its last event); raises ``UnusableError``."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UnusableError(Unusable.UNREADABLE, str(error)) from error
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    if not isinstance(meta, dict):
        raise UnusableError(Unusable.UNREADABLE, "no object with meta_info")
    _check_end(meta)
    token_ids, logprobs = _sampled(answer, meta)
    text, counted, rid = answer.get("text"), meta.get("prompt_tokens"), meta.get("id")
    if not isinstance(text, str):
        raise UnusableError(Unusable.UNREADABLE, "no text")
    if counted is not None and counted != prompt_tokens:
        raise UnusableError(Unusable.PROMPT_DIFFERS, f"{counted!r} prompt tokens, not {prompt_tokens}")
    return Sampled(rid if isinstance(rid, str) else None, text, token_ids, logprobs, weight_spans(meta, len(token_ids)))


def _check_end(meta: Mapping[str, Any]) -> None:
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, dict) else reason
    if not isinstance(kind, str) or not kind:
        raise UnusableError(Unusable.UNFINISHED, f"the finish reason is {reason!r}")
    if kind in ("abort", "error"):
        raise UnusableError(Unusable.ABORTED, f"it ended by {kind}")


def _sampled(answer: Mapping[str, Any], meta: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    output_ids, told = answer.get("output_ids"), meta.get("output_token_logprobs")
    if not isinstance(told, list):
        if output_ids == []:
            raise UnusableError(Unusable.EMPTY, "no token")
        raise UnusableError(Unusable.NO_LOGPROBS, "no output_token_logprobs")
    try:
        logprobs = [entry[0] for entry in told]
        if set(map(type, logprobs)) != {float}:
            logprobs = list(map(float, logprobs))
        token_ids = [entry[1] for entry in told]
    except (TypeError, ValueError, LookupError) as error:
        raise UnusableError(Unusable.NO_LOGPROBS, f"an entry is no [logprob, id]: {error}") from error
    if isinstance(output_ids, list):
        if len(output_ids) != len(token_ids):
            raise UnusableError(Unusable.LENGTHS_DIFFER, f"{len(logprobs)} logprobs for {len(output_ids)} output ids")
        if output_ids != token_ids:
            raise UnusableError(Unusable.IDS_DIFFER, "the ids beside the logprobs are not the output ids")
    if not token_ids:
        raise UnusableError(Unusable.EMPTY, "no token")
    counted = meta.get("completion_tokens")
    if counted is not None and counted != len(token_ids):
        raise UnusableError(Unusable.LENGTHS_DIFFER, f"{len(token_ids)} ids for {counted!r} completion tokens")
    if set(map(type, token_ids)) != {int}:
        raise UnusableError(Unusable.REFUSED, "a token id is no integer")
    return token_ids, logprobs


def weight_spans(meta: Mapping[str, Any], count: int) -> list[Span]:
    """Which weight version sampled which of ``count`` tokens: by ``weight_versions`` where it covers them, else one."""
    told = meta.get("weight_versions")
    if isinstance(told, list) and all(isinstance(span, Mapping) for span in told):
        spans = [(span.get("start"), span.get("end"), _version(span.get("version"))) for span in told]
        bounds = [bound for start, end, _ in spans for bound in (start, end) if type(bound) is int]
        if len(bounds) == 2 * len(spans) and _covers(bounds, count):
            return [Span(start, end, version) for start, end, version in spans if start < end]
    return [Span(0, count, _version(meta.get("weight_version")))]


def _covers(bounds: list[int], count: int) -> bool:
    """Whether spans (start, stop, start, stop, ...) follow one another from 0 to ``count``."""
    is_ordered = bounds == sorted(bounds) and bounds[1:-1:2] == bounds[2::2]
    return bool(bounds) and bounds[0] == 0 and bounds[-1] == count and is_ordered


def _version(value: object) -> str | None:
    """A weight version as text; older workers send numbers."""
    if value is None or type(value) is str:
        return value
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
