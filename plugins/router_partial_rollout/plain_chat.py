"""SGLang's chat call (0.5.23) with ids in, ids out and nothing parsed: how the rest of a captured chat turn is asked.

Its answers are brought into the shape of ``/generate``. Unlike that call it samples by the model's own defaults, as the
chat call did that the turn began with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from router_partial_rollout.generate import Generate
from router_partial_rollout.wire import (
    LENGTH,
    Continuation,
    Json,
    as_count,
    as_ids,
    as_object,
    as_texts,
    check_count,
    only_choice,
)

GRAMMARS = ("response_format", "json_schema", "regex", "ebnf", "structural_tag")
LENGTHS = ("max_completion_tokens", "max_tokens")
EXPERTS_START = "routed_experts_start_len"


class PlainChat(Generate):
    """Wire of such a chat call. A part has the shape of ``/generate``, see `part`."""

    # ------------------------------------------------------------------------------------------------------ the request
    def why_not(self, body: Json) -> str | None:
        if body.get("n", 1) not in (1, None):
            return "more than one answer"
        if not self.prompt(body):
            return "no prompt of ids"
        wanted = body.get("response_format")
        is_text = isinstance(wanted, dict) and wanted.get("type") == "text"
        grammars = [key for key in GRAMMARS if body.get(key) is not None and not (key == GRAMMARS[0] and is_text)]
        return "a grammar, whose state is lost" if grammars else None

    def budget(self, body: Json) -> int | None:
        return next((count for key in LENGTHS if (count := as_count(body.get(key))) is not None), None)

    def experts_start(self, body: Json) -> int:
        return as_count(body.get(EXPERTS_START)) or 0

    def stops(self, body: Json) -> list[str]:
        return as_texts(body.get("stop"))

    def keeps_stop(self, body: Json) -> bool:
        return bool(body.get("no_stop_trim"))

    def skips_special(self, body: Json) -> bool:
        return bool(body.get("skip_special_tokens", True))

    def continuation(
        self, body: Json, prompt_ids: list[int], ids: list[int], *, start: int | None, stops: Sequence[str]
    ) -> Continuation:
        changed: dict[str, Any] = {"input_ids": [*prompt_ids, *ids]}
        changed.update((key, body[key] - len(ids)) for key in LENGTHS if as_count(body.get(key)) is not None)
        if least := as_count(body.get("min_tokens")):
            changed["min_tokens"] = max(0, least - len(ids))
        if stops:
            changed["stop"] = [*self.stops(body), *stops]
        if start is not None:
            changed[EXPERTS_START] = start
        return Continuation(changed)

    # ------------------------------------------------------------------------------------------------------- the answer
    def part(self, answer: Json) -> Json:
        choice, extension = only_choice(answer), as_object(answer.get("sglext"))
        outputs = extension.get("output_ids")
        ids = as_ids(outputs[0]) if isinstance(outputs, list) and len(outputs) == 1 else None
        kind, usage = choice.get("finish_reason"), as_object(answer.get("usage"))
        reason: Json = {"type": kind, "matched": choice.get("matched_stop")}
        if kind == LENGTH:
            reason = {"type": LENGTH, "length": len(ids or ())}
        logprobs = as_object(choice.get("logprobs")).get("content") or []
        values = [as_object(entry).get("logprob") for entry in logprobs]
        meta: Json = {
            "id": answer.get("id"),
            "finish_reason": reason if kind else None,
            "prompt_tokens": usage.get("prompt_tokens"),
            "completion_tokens": None if ids is None else len(ids),
            "output_token_logprobs": [[value, token, None] for value, token in zip(values, ids or (), strict=False)]
            if len(values) == len(ids or ())
            else [],
            "routed_experts": extension.get("routed_experts"),
            **{key: as_object(answer.get("metadata")).get(key) for key in ("weight_version", "weight_versions")},
        }
        told = {key: value for key, value in meta.items() if value is not None}
        text = as_object(choice.get("message")).get("content")
        shaped: Json = {"text": text if isinstance(text, str) else "", "output_ids": ids, "meta_info": told}
        if (prompt := as_ids(extension.get("input_ids"))) is not None:
            shaped["prompt_token_ids"] = prompt
        return shaped

    def check_logprobs(self, body: Json, answer: Json) -> None:
        told = as_object(answer.get("meta_info")).get("output_token_logprobs")
        check_count(told, len(self.ids(answer) or ()))
