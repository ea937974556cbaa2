"""``POST /v1/completions`` of vLLM (0.32, experts as 0.29) and SGLang (0.5.23): one prompt, one choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from router_partial_rollout.experts import join_flat, join_npy
from router_partial_rollout.wire import (
    LENGTH,
    Continuation,
    Finish,
    Json,
    SegmentError,
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

DEFAULT_BUDGET = 16
GRAMMARS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
)
EXPERT_STARTS = ("routed_experts_start_len", "routed_experts_prompt_start")
OF_SGLANG = "matched_stop"
"""A key of each choice of SGLang; vLLM's have ``stop_reason``."""
LISTS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


class Completions:
    """Wire of ``/v1/completions``."""

    has_text = True
    flags: Mapping[str, Any] = {"return_token_ids": True}
    extra_members: Sequence[bytes] = (b"token_ids", b"prompt_token_ids")

    # ------------------------------------------------------------------------------------------------------ the request
    def why_not(self, body: Json) -> str | None:
        if any(body.get(key, 1) not in (1, None) for key in ("n", "best_of")):
            return "more than one answer"
        if self.prompt(body) is None:
            return "no single prompt"
        if body.get("echo") or body.get("suffix") is not None or body.get("use_beam_search"):
            return "echo, a suffix or beam search"
        return "a grammar, whose state is lost" if any(body.get(key) is not None for key in GRAMMARS) else None

    def prompt(self, body: Json) -> list[int] | str | None:
        prompt = body.get("prompt")
        return prompt if isinstance(prompt, str) else as_ids(prompt) or None

    def prompt_ids_told(self, answer: Json) -> list[int] | None:
        return as_ids(only_choice(answer).get("prompt_token_ids"))

    def prompt_tokens(self, answer: Json) -> int | None:
        return as_count(as_object(answer.get("usage")).get("prompt_tokens"))

    def budget(self, body: Json) -> int | None:
        given = body.get("max_tokens", DEFAULT_BUDGET)
        return given if given is None else as_count(given)

    def experts_start(self, body: Json) -> int:
        return next((start for key in EXPERT_STARTS if (start := as_count(body.get(key)))), 0)

    def stops(self, body: Json) -> list[str]:
        return as_texts(body.get("stop"))

    def keeps_stop(self, body: Json) -> bool:
        return bool(body.get("no_stop_trim") or body.get("include_stop_str_in_output"))

    def skips_special(self, body: Json) -> bool:
        return bool(body.get("skip_special_tokens", True))

    def continuation(
        self, body: Json, prompt_ids: list[int], ids: list[int], *, start: int | None, stops: Sequence[str]
    ) -> Continuation:
        changed: dict[str, Any] = {"prompt": [*prompt_ids, *ids]}
        budget = self.budget(body)
        if budget is not None:
            changed["max_tokens"] = budget - len(ids)
        least = as_count(body.get("min_tokens"))
        if least:
            changed["min_tokens"] = max(0, least - len(ids))
        if stops:
            changed["stop"] = [*self.stops(body), *stops]
        if start is not None:
            changed.update(dict.fromkeys(EXPERT_STARTS, start))
        return Continuation(changed, ("prompt_logprobs",))

    # ------------------------------------------------------------------------------------------------------- the answer
    def part(self, answer: Json) -> Json:
        return answer

    def ids(self, answer: Json) -> list[int] | None:
        ids = as_ids(only_choice(answer).get("token_ids"))
        if ids is None and as_count(as_object(answer.get("usage")).get("completion_tokens")) == 0:
            return []
        return ids

    def text(self, answer: Json) -> str:
        text = only_choice(answer).get("text")
        return text if isinstance(text, str) else ""

    def shows_partial(self, answer: Json) -> bool:
        return OF_SGLANG in only_choice(answer)

    def set_text(self, answer: Json, text: str) -> None:
        only_choice(answer)["text"] = text

    def finish(self, answer: Json) -> Finish:
        choice = only_choice(answer)
        matched = choice.get("stop_reason", choice.get(OF_SGLANG))
        return Finish(choice.get("finish_reason"), matched)

    def set_matched(self, answer: Json, matched: str) -> None:
        choice = only_choice(answer)
        choice[OF_SGLANG if OF_SGLANG in choice else "stop_reason"] = matched

    def end_by_length(self, answer: Json) -> None:
        only_choice(answer)["finish_reason"] = LENGTH

    def check_logprobs(self, body: Json, answer: Json) -> None:
        if body.get("logprobs") is None:
            return
        check_count(as_object(only_choice(answer).get("logprobs")).get("token_logprobs"), len(self.ids(answer) or ()))

    def spans(self, answer: Json) -> list[Span]:
        return spans_told(as_object(answer.get("metadata")), len(self.ids(answer) or ()))

    def experts(self, answer: Json) -> Any:
        found = only_choice(answer).get("routed_experts")
        return as_object(answer.get("sglext")).get("routed_experts") if found is None else found

    def set_experts(self, answer: Json, experts: Any) -> None:
        if experts is None:
            return
        if as_object(answer.get("sglext")).get("routed_experts") is not None:
            answer["sglext"] = {**answer["sglext"], "routed_experts": experts}
        else:
            only_choice(answer)["routed_experts"] = experts

    def join_experts(self, first: Any, first_rows: int, second: Any, second_rows: int) -> Any:
        is_npy = isinstance(second, str) and second.startswith("k05VTVBZ")  # \x93NUMPY
        return (join_npy if is_npy else join_flat)(first, first_rows, second, second_rows)

    def join(self, whole: Json, part: Json) -> Json:
        one, two = only_choice(whole), only_choice(part)
        check_one_kind(one, two)
        first, second = self.ids(whole) or [], self.ids(part) or []
        choice = {**one, **two, "text": self.text(whole) + self.text(part), "token_ids": [*first, *second]}
        for key in ("prompt_token_ids", "prompt_logprobs"):
            if key in one:
                choice[key] = one[key]
        choice["logprobs"] = joined_logprobs(one.get("logprobs"), two.get("logprobs"))
        joined: Json = {**part, **head_of(whole), "choices": [choice]}
        if isinstance(whole.get("usage"), dict) and isinstance(part.get("usage"), dict):
            joined["usage"] = joined_usage(whole["usage"], part["usage"])
        metadata = as_object(part.get("metadata"))
        if metadata.get("weight_versions") is not None:
            spans = joined_spans(self.spans(whole), self.spans(part), len(first))
            joined["metadata"] = {**metadata, "weight_versions": told_spans(spans)}
        return joined

    def set_segments(self, answer: Json, segments: list[Json]) -> None:
        with_segments(answer, segments)


def check_one_kind(first: Json, second: Json) -> None:
    """Raises SegmentError where one choice is SGLang's and one vLLM's: their logprobs and experts differ in form."""
    if (OF_SGLANG in first) is not (OF_SGLANG in second):
        raise SegmentError("one segment is SGLang's and one is vLLM's")


def head_of(answer: Json) -> Json:
    """What stays the same in all events of a stream."""
    return {key: answer[key] for key in ("id", "created", "model") if key in answer}


def joined_logprobs(first: Any, second: Any) -> Any:
    """OpenAI's lists, one behind the other; offsets of the second go on where the first one's tokens end."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second if first is None else first
    end = offset_after(first)
    moved = [at + end if at >= 0 else at for at in second.get("text_offset") or ()]
    second = {**second, "text_offset": moved}
    return {key: [*(first.get(key) or ()), *(second.get(key) or ())] for key in LISTS}


def offset_after(logprobs: Json) -> int:
    """Where the text of the tokens ends, by their own offsets."""
    offsets, tokens = logprobs.get("text_offset") or [], logprobs.get("tokens") or []
    return offsets[-1] + len(tokens[-1]) if offsets and tokens and offsets[-1] >= 0 else 0
