"""From what a worker told to what is committed: is it what was asked for, and is all of it there?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router_core import RoutedExperts

from .engines import Reading
from .errors import TurnRefusedError
from .expert_codec import collected_experts, decode_experts
from .node import ModelTurnResult
from .packed import Ids, pack_ids
from .render import RenderedPrompt

NOT_A_SAMPLE = frozenset({"aborted", "failed", "unfinished", "empty"})
"""Reasons under which an answer is no finished sample: it is counted, and not missed."""


def check_reading(reading: Reading) -> Ids:
    """The prompt's ids as the worker told them. Raises TurnRefusedError where ids are missing."""
    if reading.fault == "worker_error":
        raise TurnRefusedError("failed", "the worker ended the answer with an error")
    if reading.fault:
        raise TurnRefusedError(reading.fault, "the answer cannot be read for capture")
    if reading.completion_ids is None and reading.finish_reason in ("", "abort"):
        raise TurnRefusedError("aborted" if reading.finish_reason else "unfinished", "the answer has no end")
    if reading.completion_ids is None:
        raise TurnRefusedError("completion_ids_missing", "the worker returned no ids of what it sampled")
    if reading.prompt_ids is None:
        raise TurnRefusedError("prompt_ids_missing", "the worker returned no ids of its prompt")
    return pack_ids(reading.prompt_ids, "prompt ids")


def turn_result(
    reading: Reading,
    prompt_ids: Ids,
    rendered: RenderedPrompt | None,
    *,
    sampling: Mapping[str, Any],
    weight_version: str | None,
    wants_experts: bool,
    experts_shape: tuple[int, int] | None,
    collected: RoutedExperts | None = None,
) -> ModelTurnResult:
    """What to commit. Where the worker's prompt is not the rendered one nothing is said of who owns its tokens.

    ``weight_version`` is the worker's as the router knows it, for workers that do not tell. ``collected`` are routed
    experts that another plugin took out of the answer.
    """
    is_ours = rendered is not None and rendered.ids == prompt_ids
    length = len(prompt_ids) + len(reading.completion_ids or ())
    if collected is not None:
        experts, fault = collected_experts(collected)
    else:
        experts, fault = decode_experts(reading.experts, length, experts_shape) if wants_experts else (None, "")
    return ModelTurnResult(
        prompt_ids=prompt_ids,
        completion_ids=reading.completion_ids or (),
        logprobs=reading.logprobs,
        message={key: value for key, value in reading.message.items() if value is not None},
        finish_reason=reading.finish_reason,
        prompt_message_indices=rendered.message_indices if rendered is not None and is_ours else None,
        labelled_from=rendered.labelled_from if rendered is not None and is_ours else 0,
        reused_prefix_length=rendered.reused_prefix_length if rendered is not None and is_ours else 0,
        how=rendered.how if rendered is not None and is_ours else "render",
        routed_experts=experts,
        routed_experts_fault=fault,
        model=reading.model,
        sampling_params=sampling,
        weight_version=reading.weight_version if reading.weight_version is not None else weight_version,
        weight_versions=reading.weight_versions,
        cached_tokens=reading.cached_tokens,
    )
