"""What ``POST /sessions`` may say to capture: a model, sampling parameters, limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from router_core import Reject

STRUCTURE = frozenset(
    {
        *("messages", "tools", "chat_template_kwargs", "model", "stream", "stream_options", "n", "best_of"),
        *("logprobs", "top_logprobs", "input_ids", "kv_transfer_params", "return_token_ids", "cache_salt"),
        *("return_input_ids_in_sglext", "return_output_ids_in_sglext", "return_routed_experts"),
        *("use_beam_search", "continue_final_message", "add_generation_prompt", "echo", "chat_template", "documents"),
    }
)
"""Keys of a chat body that are no sampling parameters."""
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "min_tokens", "stop"),
    *("stop_token_ids", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos"),
    *("logit_bias", "skip_special_tokens"),
)
"""Keys of a chat body that are recorded as what a turn was sampled with."""
LENGTHS = ("max_tokens", "max_completion_tokens")
RENAMED = {"max_new_tokens": "max_tokens", "sampling_seed": "seed", "min_new_tokens": "min_tokens"}
"""SGLang's native names -> those of the chat call."""
LIMITS = ("max_turns", "max_total_tokens", "max_wall_clock_s")
KEYS = ("model", "sampling_params", *LIMITS)
MAX_MODEL_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What one session was opened with; None: no such limit."""

    model: str | None = None
    """Model that every turn asks for, whatever the agent wrote."""
    sampling_params: Mapping[str, Any] = field(default_factory=dict)
    """What every turn is sampled with, whatever the agent wrote."""
    max_turns: int | None = None
    """Most answers."""
    max_total_tokens: int | None = None
    """Most tokens of one trajectory, prompt and answer together."""
    max_wall_clock_s: float | None = None
    """Seconds from the opening of the session after which no turn begins."""

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> SessionOptions:
        """From the body of ``POST /sessions``. Raises Reject (400) naming the key at fault."""
        model = body.get("model")
        if model is not None and (not isinstance(model, str) or not 0 < len(model) <= MAX_MODEL_CHARACTERS):
            raise _bad("model", f"must be a text of 1 to {MAX_MODEL_CHARACTERS} characters")
        return cls(
            model=model,
            sampling_params=_sampling_params(body.get("sampling_params")),
            max_turns=_count(body, "max_turns"),
            max_total_tokens=_count(body, "max_total_tokens"),
            max_wall_clock_s=_seconds(body, "max_wall_clock_s"),
        )

    def overrides(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of a chat body that this session sets, with their values."""
        overrides = dict(self.sampling_params)
        length = next((overrides[key] for key in LENGTHS if key in overrides), None)
        if length is not None:
            # Engines prefer one of the two names; whichever the agent wrote must not win.
            overrides |= {key: length for key in LENGTHS if key in body}
        if self.model is not None:
            overrides["model"] = self.model
        return overrides


def sampling_record(
    body: Mapping[str, Any], overrides: Mapping[str, Any], effective: Mapping[str, Any]
) -> dict[str, Any]:
    """What is kept of how a turn was sampled: the values that held, and under ``harness`` those they replaced."""
    keys = [*SAMPLING, *(key for key in overrides if key not in SAMPLING and key != "model")]
    record = {key: effective[key] for key in keys if effective.get(key) is not None}
    replaced = {key: body.get(key) for key in overrides if body.get(key) != overrides[key]}
    return {**record, "harness": replaced} if replaced else record


def _sampling_params(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _bad("sampling_params", f"must be an object, not {type(value).__name__}")
    params: dict[str, Any] = {}
    for given, item in value.items():
        name = RENAMED.get(str(given), str(given))
        if name == "n" and item == 1:
            continue
        if name in STRUCTURE:
            raise _bad(f"sampling_params.{given}", "is no sampling parameter of a captured session")
        if isinstance(item, float) and not math.isfinite(item):
            raise _bad(f"sampling_params.{given}", "must be a finite number")
        params[name] = item
    return params


def _count(body: Mapping[str, Any], key: str) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _bad(key, f"must be a whole number of at least 1, not {value!r}")
    return value


def _seconds(body: Mapping[str, Any], key: str) -> float | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise _bad(key, f"must be a number of seconds above 0, not {value!r}")
    return float(value)


def _bad(key: str, message: str) -> Reject:
    return Reject(400, "bad_value", f"{key} {message}", key)
