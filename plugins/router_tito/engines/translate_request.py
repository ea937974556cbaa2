"""Translates the fields of a chat request for calls that generate from ids. What has no counterpart is refused by name.

The conversation itself (messages, tools, template arguments) is in the prompt's ids already.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from router_core import Reject, Worker

from .detect import FACTS
from .interface import Ask, EngineServices

Json: TypeAlias = dict[str, Any]

RENDERED = frozenset({"messages", "tools", "chat_template_kwargs", "reasoning_effort"})
"""In the prompt's ids."""
READ_HERE = frozenset(
    {
        *("model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs"),
        *("skip_special_tokens", "separate_reasoning", "tool_choice", "response_format"),
    }
)
"""Not copied, but heeded: by the translation or by the reader of the answer."""
WITHOUT_EFFECT = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "add_special_tokens", "stream_reasoning"),
    }
)
"""Fields of a hosted service, or of rendering, that change nothing here."""
ONLY: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "parallel_tool_calls": (True,),
    "include_reasoning": (True,),
    "modalities": (["text"],),
    "return_hidden_states": (False,),
    "return_token_ids": (False,),
    "return_prompt_token_ids": (False,),
    "return_meta_info": (False,),
    "return_tokens_as_token_ids": (False,),
    "return_input_ids_in_sglext": (False,),
    "return_output_ids_in_sglext": (False,),
}
"""Fields that pass with these values only, which ask for nothing."""
TOOL_CHOICES = ("auto", "none")


def not_translatable(field: str, why: str) -> Reject:
    """The refusal of one field."""
    return Reject(400, "not_translatable", f"{field} {why} (plugins.tito.mode = translate)", field)


def translate_fields(body: Mapping[str, Any], names: Mapping[str, str], heeded: frozenset[str]) -> Json:
    """The fields of ``names``, renamed; ``heeded`` are further ones that the caller sees to. Raises Reject (400)."""
    translated: Json = {}
    for field, value in body.items():
        if value is None or field in RENDERED or field in WITHOUT_EFFECT or field in READ_HERE or field in heeded:
            continue
        if field in names:
            translated[names[field]] = value
        elif field not in ONLY:
            raise not_translatable(field, "has no counterpart in the call that generates from ids")
        elif not any(value == allowed for allowed in ONLY[field]):
            allowed = " or ".join(json.dumps(item) for item in ONLY[field])
            raise not_translatable(field, f"can only be {allowed} here, not {value!r}")
    _check_read_here(body)
    return translated


def _check_read_here(body: Mapping[str, Any]) -> None:
    choice = body.get("tool_choice")
    if choice is not None and choice not in TOOL_CHOICES:
        raise not_translatable("tool_choice", f"can be auto or none here: nothing would force {choice!r}")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, Mapping):
        raise Reject(400, "bad_value", "stream_options must be an object", "stream_options")
    if options and options.get("continuous_usage_stats"):
        raise not_translatable("stream_options.continuous_usage_stats", "has no counterpart here")


def top_logprobs(body: Mapping[str, Any]) -> int:
    """How many of the likeliest tokens the client wants to see at each position."""
    wanted = body.get("top_logprobs")
    return wanted if body.get("logprobs") and isinstance(wanted, int) and wanted > 0 else 0


def json_schema(body: Mapping[str, Any]) -> str | None:
    """The schema of ``response_format`` as text, None for free text. Raises Reject (400)."""
    wanted = body.get("response_format")
    kind = wanted.get("type") if isinstance(wanted, Mapping) else wanted
    if wanted is None or kind == "text":
        return None
    if isinstance(wanted, Mapping) and kind == "json_object":
        return '{"type": "object"}'
    described = wanted.get("json_schema") if isinstance(wanted, Mapping) and kind == "json_schema" else None
    if isinstance(described, Mapping) and isinstance(described.get("schema"), Mapping):
        return json.dumps(described["schema"])
    raise not_translatable("response_format", f"of the type {kind!r} has no counterpart here")


def most_tokens(ask: Ask, worker: Worker, services: EngineServices) -> Any:
    """Most tokens of the answer: the client's word, else the setting's, else all that the context has room for.

    Always sent: these calls stop at 128 or 16 tokens by themselves. None: nothing is known to limit it.
    """
    body = ask.body
    for field in ("max_completion_tokens", "max_tokens"):
        if body.get(field) is not None:
            return body[field]
    facts = worker.state_of.get(FACTS)
    limit = facts.max_model_len if facts is not None else None
    # A prompt that fills the context is the worker's to refuse.
    room = None if limit is None else max(limit - len(ask.prompt_ids or ()), 1)
    known = [most for most in (services.default_max_tokens, room) if most is not None]
    return min(known, default=None)
