"""The prompt of a /generate request, where it is one that can be kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OTHER_INPUTS = frozenset(("input_embeds", "image_data", "video_data", "audio_data", "session_params"))
"""Keys with which text and ids are not the whole prompt."""


@dataclass(slots=True)
class Prompt:
    """One prompt: its text, or its ids. ``asks_logprobs``: the client wants to see logprobs itself."""

    text: str | None
    token_ids: list[int] | None
    is_stream: bool
    asks_logprobs: bool


def read_prompt(body: object) -> Prompt | None:
    """The prompt of a request body; None for a batch, for several samples at once and for what is no prompt."""
    if not isinstance(body, dict) or not _is_single(body):
        return None
    if not OTHER_INPUTS.isdisjoint(body) and any(body.get(key) for key in OTHER_INPUTS):
        return None
    text, token_ids = body.get("text"), body.get("input_ids")
    is_stream, asks_logprobs = bool(body.get("stream")), bool(body.get("return_logprob"))
    if token_ids is not None:  # they win over a text, as in SGLang
        is_one = isinstance(token_ids, list) and token_ids and type(token_ids[0]) is int
        return Prompt(None, token_ids, is_stream, asks_logprobs) if is_one else None
    return Prompt(text, None, is_stream, asks_logprobs) if isinstance(text, str) and text else None


def _is_single(body: Mapping[str, Any]) -> bool:
    sampling = body.get("sampling_params") or {}
    return isinstance(sampling, dict) and sampling.get("n") in (None, 1) and not isinstance(body.get("rid"), list)
