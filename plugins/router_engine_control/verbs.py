"""The verbs of SGLang and vLLM that are meant for every server, and what is read in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from router_core import Reject

VERBS = (
    "/flush_cache",
    "/pause_generation",
    "/continue_generation",
    "/sleep",
    "/wake_up",
    "/pause",
    "/resume",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/collective_rpc",
    "/load_lora_adapter",
    "/unload_lora_adapter",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/update_weights_from_disk",
    "/update_weights_from_tensor",
    "/update_weights_from_distributed",
    "/update_weights_from_ipc",
    "/init_weights_update_group",
    "/destroy_weights_update_group",
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/update_weight_version",
    "/start_profile",
    "/stop_profile",
    "/release_memory_occupation",
    "/resume_memory_occupation",
)
"""Paths that go to all workers as they come."""

ANY_WORKER = ("/get_model_info", "/model_info", "/get_server_info", "/server_info", "/v1/models")
"""Paths that one ready worker answers for all."""

_PAUSES = {
    "/pause_generation": "/continue_generation",
    "/pause": "/resume",
    "/sleep": "/wake_up",
    "/release_memory_occupation": "/resume_memory_occupation",
}
"""Verb -> the one that ends it: between the two a worker may abort what it runs."""
_ENDS = {end: begin for begin, end in _PAUSES.items()}
_EMPTIES_CACHE = frozenset(("/flush_cache", "/reset_prefix_cache", "/sleep", "/release_memory_occupation"))
_VERSION_KEYS = {"/update_weight_version": "new_version"}


def pauses(path: str) -> bool:
    """Whether a worker is paused once this verb came, until another one ends it."""
    return path in _PAUSES


def ended_pause(path: str) -> str | None:
    """The verb whose pause this one ends."""
    return _ENDS.get(path)


def updates_weights(path: str) -> bool:
    """Whether a worker's weights, or their version, change while it runs this verb."""
    return path.startswith(("/update_weight", "/start_weight_update", "/finish_weight_update"))


def empties_cache(path: str) -> bool:
    """Whether a worker's prefix cache is empty once this verb succeeded there."""
    return path in _EMPTIES_CACHE or path.startswith("/update_weights")


def new_weight_version(path: str, body: bytes) -> str | None:
    """The version that a successful call of this verb gives a worker, or None where it names none."""
    if not path.startswith("/update_weight") or not body:
        return None
    version = read_object(body).get(_VERSION_KEYS.get(path, "weight_version"))
    return version if isinstance(version, str) and version else None


def read_abort(body: bytes) -> list[str] | None:
    """The rids that an ``/abort_request`` names; None: all. Raises Reject (400) naming the field."""
    try:
        call = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise Reject(400, "malformed_body", f"the body is not JSON: {error}") from None
    if not isinstance(call, dict):
        raise Reject(400, "malformed_body", f"the body must be a JSON object, not {type(call).__name__}")
    wants_all = call.get("abort_all", False)
    if not isinstance(wants_all, bool):
        raise Reject(400, "bad_value", f"abort_all must be true or false, not {wants_all!r}", "abort_all")
    if wants_all:
        return None
    rids = read_rids(call)
    if not rids:
        raise Reject(400, "missing_rid", 'say what to abort: {"rid": "..."} or {"abort_all": true}', "rid")
    return rids


def may_name_rid(body: bytes) -> bool:
    """Whether the text of a body has the key anywhere. (``rfind`` takes half as long as ``in`` does: 9 µs in 36 KB.)"""
    return body.rfind(b'"rid"') >= 0


def read_rids(call: Mapping[str, Any]) -> list[str]:
    """The rids of a body: a text, or a list of texts for a batch; nothing where it holds neither."""
    given = call.get("rid")
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, list):
        return []
    return [rid for rid in listed if isinstance(rid, str) and rid]


def is_batch(call: Mapping[str, Any]) -> bool:
    """Whether a ``/generate`` asks for more than one generation, so that one rid is not enough for it."""
    sampling = call.get("sampling_params")
    if isinstance(sampling, list) or (isinstance(sampling, dict) and sampling.get("n", 1) != 1):
        return True
    text, ids = call.get("text"), call.get("input_ids")
    return isinstance(text, list) or (isinstance(ids, list) and bool(ids) and isinstance(ids[0], list))


def read_object(body: bytes) -> dict[str, Any]:
    """A body's JSON object; an empty one where it is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
