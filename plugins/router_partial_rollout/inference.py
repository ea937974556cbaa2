"""vLLM's ``POST /inference/v1/generate`` (0.32): ids in, ids out, no text.

It is how captured chat is asked in mode ``render``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from router_partial_rollout.experts import join_npy
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
    joined_usage,
    only_choice,
    spans_told,
    told_spans,
    with_segments,
)

FIRST = ("request_id", "created", "model", "prompt_token_ids")
EXPERTS_START = "routed_experts_prompt_start"


class Inference:
    """Wire of ``/inference/v1/generate``."""

    has_text = False
    flags: Mapping[str, Any] = {}
    extra_members: Sequence[bytes] = ()

    # ------------------------------------------------------------------------------------------------------ the request
    def why_not(self, body: Json) -> str | None:
        sampling = _sampling(body)
        if sampling.get("n", 1) not in (1, None):
            return "more than one answer"
        if not self.prompt(body) or body.get("features") is not None:
            return "no prompt of ids alone"
        if as_texts(sampling.get("stop")):
            return "a stop text, whose beginning cannot be seen"
        is_free = sampling.get("structured_outputs") is None
        return None if is_free else "a grammar, whose state is lost"

    def prompt(self, body: Json) -> list[int] | str | None:
        return as_ids(body.get("token_ids"))

    def prompt_ids_told(self, answer: Json) -> list[int] | None:
        return as_ids(answer.get("prompt_token_ids"))

    def prompt_tokens(self, answer: Json) -> int | None:
        return as_count(as_object(answer.get("usage")).get("prompt_tokens"))

    def budget(self, body: Json) -> int | None:
        return as_count(_sampling(body).get("max_tokens"))

    def experts_start(self, body: Json) -> int:
        return as_count(_sampling(body).get(EXPERTS_START)) or 0

    def stops(self, body: Json) -> list[str]:
        return []

    def keeps_stop(self, body: Json) -> bool:
        return False

    def skips_special(self, body: Json) -> bool:
        return False

    def continuation(
        self, body: Json, prompt_ids: list[int], ids: list[int], *, start: int | None, stops: Sequence[str]
    ) -> Continuation:
        sampling = dict(_sampling(body))
        if (budget := self.budget(body)) is not None:
            sampling["max_tokens"] = budget - len(ids)
        if least := as_count(sampling.get("min_tokens")):
            sampling["min_tokens"] = max(0, least - len(ids))
        if start is not None:
            sampling[EXPERTS_START] = start
        sampling.pop("prompt_logprobs", None)
        return Continuation({"token_ids": [*prompt_ids, *ids], "sampling_params": sampling})

    # ------------------------------------------------------------------------------------------------------- the answer
    def part(self, answer: Json) -> Json:
        return answer

    def ids(self, answer: Json) -> list[int] | None:
        choice = only_choice(answer)
        found = choice.get("token_ids")
        return [] if found is None and choice.get("finish_reason") else as_ids(found)

    def text(self, answer: Json) -> str:
        return ""

    def shows_partial(self, answer: Json) -> bool:
        return False

    def set_text(self, answer: Json, text: str) -> None:
        """There is none."""

    def finish(self, answer: Json) -> Finish:
        choice = only_choice(answer)
        return Finish(choice.get("finish_reason"), choice.get("stop_reason"))

    def set_matched(self, answer: Json, matched: str) -> None:
        only_choice(answer)["stop_reason"] = matched

    def end_by_length(self, answer: Json) -> None:
        only_choice(answer)["finish_reason"] = LENGTH

    def check_logprobs(self, body: Json, answer: Json) -> None:
        if _sampling(body).get("logprobs") is not None:
            content = as_object(only_choice(answer).get("logprobs")).get("content")
            check_count(content, len(self.ids(answer) or ()))

    def spans(self, answer: Json) -> list[Span]:
        return spans_told(only_choice(answer), len(self.ids(answer) or ()))

    def experts(self, answer: Json) -> Any:
        return only_choice(answer).get("routed_experts")

    def set_experts(self, answer: Json, experts: Any) -> None:
        if experts is not None:
            only_choice(answer)["routed_experts"] = experts

    def join_experts(self, first: Any, first_rows: int, second: Any, second_rows: int) -> Any:
        return join_npy(first, first_rows, second, second_rows)

    def join(self, whole: Json, part: Json) -> Json:
        one, two = only_choice(whole), only_choice(part)
        first, second = self.ids(whole) or [], self.ids(part) or []
        choice = {**one, **two, "token_ids": [*first, *second]}
        told = [as_object(each.get("logprobs")).get("content") for each in (one, two)]
        if any(content is not None for content in told):
            choice["logprobs"] = {"content": [entry for content in told for entry in content or ()]}
        if two.get("weight_versions") is not None:
            spans = joined_spans(self.spans(whole), self.spans(part), len(first))
            choice["weight_versions"] = told_spans(spans)
        joined: Json = {**part, "choices": [choice]}
        joined.update((key, whole[key]) for key in FIRST if key in whole)
        if isinstance(whole.get("usage"), dict) and isinstance(part.get("usage"), dict):
            joined["usage"] = joined_usage(whole["usage"], part["usage"])
        return joined

    def set_segments(self, answer: Json, segments: list[Json]) -> None:
        with_segments(answer, segments)


def _sampling(body: Json) -> Json:
    return as_object(body.get("sampling_params"))
