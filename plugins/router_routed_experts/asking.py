"""What a request asks of routed experts, and what is asked for in its name.

SGLang gives them on request (``return_routed_experts``), from row ``routed_experts_start_len`` on; vLLM whenever its
server runs with the flag, from row ``routed_experts_prompt_start`` on. Both ignore a key that is the other's.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

GENERATE, CHAT, COMPLETIONS, TOKENS = (
    "/generate",
    "/v1/chat/completions",
    "/v1/completions",
    "/inference/v1/generate",
)
TARGETS = {target.encode(): target for target in (GENERATE, CHAT, COMPLETIONS, TOKENS)}
"""By raw path."""

RETURN = "return_routed_experts"
SGLANG_START, VLLM_START = "routed_experts_start_len", "routed_experts_prompt_start"
_ROWS_ONLY = (b"routed_experts",)
_NOTHING: Mapping[str, tuple[bytes, ...]] = {}
_KEY_OF_IDS = {GENERATE: "input_ids", COMPLETIONS: "prompt", TOKENS: "token_ids"}
SGLEXT_FLAGS = ("return_cached_tokens_details", "return_spec_tokens_details")


@dataclass(slots=True)
class Asked:
    """One request. ``is_own``: the client asks for routed experts itself. ``start``: the first row that is asked for.

    ``prompt_ids`` are those that the request itself tells, where they are asked for, and ``prompt_tokens`` how many
    there are; None where it tells none. ``hidden`` are the members that
    are in the answer only because the plugin asked; ``hides_sglext``: so is a whole event of a stream.
    """

    target: str
    is_stream: bool
    is_own: bool
    start: int
    prompt_ids: array[int] | None
    prompt_tokens: int | None
    hidden: tuple[bytes, ...]
    hides_sglext: bool
    rid: str | None


def read_asked(
    target: str, body: Mapping[str, Any], header_names: Iterable[str] = (), *, needs_ids: bool = True
) -> Asked:
    """What a request asks, from its target, its body and the names of its header fields.

    ``needs_ids``: whether a session's next turn may continue it. Else its ids are only counted.
    """
    sampling = body.get("sampling_params") if target == TOKENS else None
    told = {**body, **sampling} if isinstance(sampling, dict) else body
    sglang_start, vllm_start = told.get(SGLANG_START), told.get(VLLM_START)
    starts = [start for start in (sglang_start, vllm_start) if type(start) is int]
    is_own = bool(told.get(RETURN)) or bool(starts)
    is_stream = bool(body.get("stream"))
    is_openai = target in (CHAT, COMPLETIONS)
    has_sglext = is_openai and _asks_sglext(body, header_names)
    rid = body.get("rid")
    told_ids = _told_ids(target, body)
    prompt_ids = packed_ids(told_ids) if needs_ids else None
    return Asked(
        target,
        is_stream,
        is_own,
        max(starts) if starts else 0,
        prompt_ids,
        _counted(told_ids) if prompt_ids is None else len(prompt_ids),
        hidden=_hidden(target, body, is_stream=is_stream, is_own=is_own, has_sglext=has_sglext),
        hides_sglext=is_stream and is_openai and not (is_own or has_sglext),
        rid=rid if isinstance(rid, str) else None,
    )


def _asks_sglext(body: Mapping[str, Any], header_names: Iterable[str]) -> bool:
    if any(bool(body.get(key)) for key in body if key.endswith("_in_sglext") or key in SGLEXT_FLAGS):
        return True
    return any(name.startswith("x-sglext-") for name in header_names)


def edits(asked: Asked, body: Mapping[str, Any], start: int) -> dict[str, Any]:
    """The keys to be set on a request, so that its answer brings rows from ``start`` on and says how many it has."""
    keys: dict[str, Any] = {}
    if asked.target == TOKENS:
        sampling = body.get("sampling_params")
        return {"sampling_params": {**sampling, VLLM_START: start}} if start and isinstance(sampling, Mapping) else {}
    if not asked.is_own:
        keys[RETURN] = True
        if start:
            keys[SGLANG_START] = start
        if start and asked.target != GENERATE:
            keys[VLLM_START] = start
    for key in _counting(asked.target, is_stream=asked.is_stream, is_own=asked.is_own):
        if not body.get(key):
            keys[key] = True
    return keys


def _counting(target: str, *, is_stream: bool, is_own: bool) -> Mapping[str, tuple[bytes, ...]]:
    """What makes an answer tell its tokens where it does not by itself: keys of the request, and the members they add.

    SGLang's chat refuses ``return_meta_info`` in a stream and has the ids in its last event instead. Asked for it, it
    moves the routed experts there, so a client that asks for these itself is not given it.
    """
    if target == GENERATE:
        return _NOTHING
    if target == COMPLETIONS:
        return {"return_token_ids": (b"token_ids", b"prompt_token_ids")}
    if target == CHAT and is_stream:
        return {"return_input_ids_in_sglext": (b"input_ids",), "return_output_ids_in_sglext": (b"output_ids",)}
    return {"return_meta_info": (b"meta_info",)} if target == CHAT and not is_own else {}


def _hidden(
    target: str, body: Mapping[str, Any], *, is_stream: bool, is_own: bool, has_sglext: bool
) -> tuple[bytes, ...]:
    if target == GENERATE:
        return () if is_own else _ROWS_ONLY
    added = _counting(target, is_stream=is_stream, is_own=is_own)
    hidden = [member for key, members in added.items() if not body.get(key) for member in members]
    if not is_own:
        hidden.append(b"routed_experts")
    if not (is_own or is_stream or has_sglext) and target == COMPLETIONS:
        hidden.append(b"sglext")
    return tuple(hidden)


def _told_ids(target: str, body: Mapping[str, Any]) -> object:
    if target == CHAT:
        transfer = body.get("kv_transfer_params")
        return body.get("input_ids") or (transfer.get("prompt_token_ids") if isinstance(transfer, Mapping) else None)
    return body.get(_KEY_OF_IDS[target])


def _counted(told: object) -> int | None:
    """How many ids a list has; None for what is none. A worker refuses a list that is none further on."""
    return len(told) if isinstance(told, list) and told and type(told[0]) is int else None


def packed_ids(told: object) -> array[int] | None:
    """A list of ids packed; None for what is none."""
    if not isinstance(told, list) or not told:
        return None
    try:
        return array("i", told)
    except (TypeError, OverflowError):
        return None
