"""SGLang's ``POST /generate`` (0.5.23): one prompt, one answer; a stream repeats the whole answer as it grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from router_partial_rollout.experts import join_flat
from router_partial_rollout.wire import (
    LENGTH,
    Continuation,
    Finish,
    Json,
    Span,
    as_count,
    as_ids,
    as_object,
    as_texts,
    check_count,
    joined_spans,
    spans_told,
    told_spans,
)

DEFAULT_BUDGET = 128
NOT_IDS = ("image_data", "video_data", "audio_data", "input_embeds", "session_params")
GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
SUMS = ("completion_tokens", "reasoning_tokens", "output_token_logprobs_length", "e2e_latency")
FIRST = ("id", "prompt_tokens", "cached_tokens", "cached_tokens_details", "request_received_ts", "first_token_latency")
"""Keys of ``meta_info`` that the first segment tells; what is in neither list is the last one's."""


class Generate:
    """Wire of ``/generate``."""

    has_text = True
    flags: Mapping[str, Any] = {}
    extra_members: Sequence[bytes] = ()

    # ------------------------------------------------------------------------------------------------------ the request
    def why_not(self, body: Json) -> str | None:
        sampling = body.get("sampling_params") or {}
        if not isinstance(sampling, dict) or sampling.get("n", 1) not in (1, None):
            return "more than one answer"
        prompt = self.prompt(body)
        if prompt is None:
            return "no single prompt"
        if any(body.get(key) is not None for key in NOT_IDS):
            return "a prompt that is more than ids"
        if any(sampling.get(key) is not None for key in GRAMMARS):
            return "a grammar, whose state is lost"
        return "hidden states" if body.get("return_hidden_states") else None

    def prompt(self, body: Json) -> list[int] | str | None:
        if body.get("input_ids") is not None:
            return as_ids(body["input_ids"])
        text = body.get("text")
        return text if isinstance(text, str) else None

    def prompt_ids_told(self, answer: Json) -> list[int] | None:
        return None

    def prompt_tokens(self, answer: Json) -> int | None:
        return as_count(_meta(answer).get("prompt_tokens"))

    def budget(self, body: Json) -> int | None:
        given = _sampling(body).get("max_new_tokens", DEFAULT_BUDGET)
        return given if given is None else as_count(given)

    def experts_start(self, body: Json) -> int:
        return as_count(body.get("routed_experts_start_len")) or 0

    def stops(self, body: Json) -> list[str]:
        return as_texts(_sampling(body).get("stop"))

    def keeps_stop(self, body: Json) -> bool:
        return bool(_sampling(body).get("no_stop_trim"))

    def skips_special(self, body: Json) -> bool:
        return bool(_sampling(body).get("skip_special_tokens", True))

    def continuation(
        self, body: Json, prompt_ids: list[int], ids: list[int], *, start: int | None, stops: Sequence[str]
    ) -> Continuation:
        sampling = dict(_sampling(body))
        budget = self.budget(body)
        if budget is not None:
            sampling["max_new_tokens"] = budget - len(ids)
        least = as_count(sampling.get("min_new_tokens"))
        if least:
            sampling["min_new_tokens"] = max(0, least - len(ids))
        if stops:
            sampling["stop"] = [*self.stops(body), *stops]
        changed: dict[str, Any] = {"input_ids": [*prompt_ids, *ids], "sampling_params": sampling}
        if start is not None:
            changed["routed_experts_start_len"] = start
        if body.get("logprob_start_len") is not None:
            changed["logprob_start_len"] = -1
        return Continuation(changed, ("text",))

    # ------------------------------------------------------------------------------------------------------- the answer
    def part(self, answer: Json) -> Json:
        return answer

    def ids(self, answer: Json) -> list[int] | None:
        """None where a server sends less than all ids so far (``--incremental-streaming-output``)."""
        ids = as_ids(answer.get("output_ids", []))
        count = _meta(answer).get("completion_tokens")
        return None if ids is None or (count is not None and count != len(ids)) else ids

    def text(self, answer: Json) -> str:
        text = answer.get("text")
        return text if isinstance(text, str) else ""

    def shows_partial(self, answer: Json) -> bool:
        return True

    def set_text(self, answer: Json, text: str) -> None:
        answer["text"] = text

    def finish(self, answer: Json) -> Finish:
        reason = as_object(_meta(answer).get("finish_reason"))
        return Finish(reason.get("type"), reason.get("matched"), as_count(reason.get("status_code")))

    def set_matched(self, answer: Json, matched: str) -> None:
        meta = _meta(answer)
        answer["meta_info"] = {**meta, "finish_reason": {**as_object(meta.get("finish_reason")), "matched": matched}}

    def end_by_length(self, answer: Json) -> None:
        answer["meta_info"] = {
            **_meta(answer),
            "finish_reason": {"type": LENGTH, "length": len(self.ids(answer) or ())},
        }

    def check_logprobs(self, body: Json, answer: Json) -> None:
        if not body.get("return_logprob"):
            return
        check_count(_meta(answer).get("output_token_logprobs"), len(self.ids(answer) or ()))

    def spans(self, answer: Json) -> list[Span]:
        return spans_told(_meta(answer), len(self.ids(answer) or ()))

    def experts(self, answer: Json) -> Any:
        return _meta(answer).get("routed_experts")

    def set_experts(self, answer: Json, experts: Any) -> None:
        if experts is not None:
            answer["meta_info"]["routed_experts"] = experts

    def join_experts(self, first: Any, first_rows: int, second: Any, second_rows: int) -> Any:
        return join_flat(first, first_rows, second, second_rows)

    def join(self, whole: Json, part: Json) -> Json:
        one, two = _meta(whole), _meta(part)
        first, second = self.ids(whole) or [], self.ids(part) or []
        meta = dict(two)
        meta.update((key, one[key]) for key in one if key in FIRST or key.startswith("input_"))
        for key in SUMS:
            if isinstance(one.get(key), int | float) and isinstance(two.get(key), int | float):
                meta[key] = one[key] + two[key]
        for key, value in one.items():
            if key.startswith("output_") and isinstance(value, list):
                meta[key] = [*value, *(two.get(key) or ())]
        if isinstance(meta.get("finish_reason"), dict) and meta["finish_reason"].get("type") == LENGTH:
            meta["finish_reason"] = {**meta["finish_reason"], "length": len(first) + len(second)}
        if two.get("weight_versions") is not None:
            spans = joined_spans(self.spans(whole), self.spans(part), len(first))
            meta["weight_versions"] = told_spans(spans)
        text = self.text(whole) + self.text(part)
        joined: Json = {**whole, **part, "text": text, "output_ids": [*first, *second], "meta_info": meta}
        if "prompt_token_ids" in whole:
            joined["prompt_token_ids"] = whole["prompt_token_ids"]
        return joined

    def set_segments(self, answer: Json, segments: list[Json]) -> None:
        answer["meta_info"]["segments"] = segments


def _meta(answer: Json) -> Json:
    return as_object(answer.get("meta_info"))


def _sampling(body: Json) -> Json:
    return as_object(body.get("sampling_params"))
