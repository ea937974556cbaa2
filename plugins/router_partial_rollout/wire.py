"""What joining needs of a wire: how a generation is asked, read and continued. Knows no HTTP and no router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

Json = dict[str, Any]

ABORT, LENGTH = "abort", "length"


class SegmentError(Exception):
    """Two segments cannot be one answer: something is missing in one of them, or has another shape."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a generation ended. ``matched``: the stop text or id; ``status``: an error that the worker saw in it."""

    kind: str | None
    matched: str | int | None = None
    status: int | None = None

    @property
    def is_abort(self) -> bool:
        """Cut short, and not because the request itself is wrong."""
        return self.kind == ABORT and (self.status is None or self.status >= 500)


@dataclass(frozen=True, slots=True)
class Span:
    """Output tokens ``start`` to ``end`` (exclusive) and the weight version that sampled them, None if unknown."""

    version: str | None
    start: int
    end: int

    def moved(self, by: int) -> Span:
        return Span(self.version, self.start + by, self.end + by)


@dataclass(frozen=True, slots=True)
class Continuation:
    """What has to be said for the rest: keys of the body to set and to take out."""

    set: Mapping[str, Any]
    remove: Sequence[str] = ()


class Wire(Protocol):
    """One call of an engine. An answer is its JSON object; streamed answers are brought into the same shape."""

    has_text: bool
    """Whether answers hold text; else only ids, and the two ``text`` methods do nothing."""

    flags: Mapping[str, Any]
    """Keys that the first request must have so that its answer can be continued..."""
    extra_members: Sequence[bytes]
    """...and the members that come of them, to be taken out again where the client did not ask."""

    def why_not(self, body: Json) -> str | None:
        """Why an answer to this request cannot be continued; None: it can."""
        ...

    def prompt(self, body: Json) -> list[int] | str | None:
        """The prompt's ids, or its text."""
        ...

    def prompt_ids_told(self, answer: Json) -> list[int] | None:
        """The prompt's ids as the worker read them, where it says so."""
        ...

    def prompt_tokens(self, answer: Json) -> int | None: ...

    def budget(self, body: Json) -> int | None:
        """Most output tokens; None: as many as there is room for."""
        ...

    def experts_start(self, body: Json) -> int: ...

    def stops(self, body: Json) -> list[str]: ...

    def keeps_stop(self, body: Json) -> bool:
        """Whether the text keeps the stop that ended it."""
        ...

    def skips_special(self, body: Json) -> bool: ...

    def continuation(
        self, body: Json, prompt_ids: list[int], ids: list[int], *, start: int | None, stops: Sequence[str]
    ) -> Continuation:
        """``ids``: the output so far; ``start``: the first row of routed experts that is wanted, None as it was;
        ``stops``: stop texts beside those of the body."""
        ...

    def part(self, answer: Json) -> Json:
        """A worker's whole answer in the shape that the other methods read."""
        ...

    def ids(self, answer: Json) -> list[int] | None: ...

    def text(self, answer: Json) -> str: ...

    def shows_partial(self, answer: Json) -> bool:
        """Whether a text that ends within a character shows that."""
        ...

    def set_text(self, answer: Json, text: str) -> None: ...

    def finish(self, answer: Json) -> Finish: ...

    def set_matched(self, answer: Json, matched: str) -> None:
        """The stop text that really ended it."""
        ...

    def end_by_length(self, answer: Json) -> None:
        """An abort that came when all tokens were there already."""
        ...

    def check_logprobs(self, body: Json, answer: Json) -> None:
        """Raises SegmentError where they are asked for and are not one for each token."""
        ...

    def spans(self, answer: Json) -> list[Span]:
        """Empty where the worker does not say."""
        ...

    def experts(self, answer: Json) -> Any:
        """Routed experts as they came; None without."""
        ...

    def set_experts(self, answer: Json, experts: Any) -> None: ...

    def join_experts(self, first: Any, first_rows: int, second: Any, second_rows: int) -> Any:
        """Raises SegmentError."""
        ...

    def join(self, whole: Json, part: Json) -> Json:
        """One answer of two, but for the text at the seam, the experts and the segments."""
        ...

    def set_segments(self, answer: Json, segments: list[Json]) -> None: ...


def joined_spans(first: Sequence[Span], second: Sequence[Span], offset: int) -> list[Span]:
    """Spans of an answer, and of what follows its first ``offset`` tokens; neighbours of one version become one."""
    spans: list[Span] = []
    for span in [*first, *(span.moved(offset) for span in second)]:
        if span.start == span.end:
            continue
        if spans and spans[-1].version == span.version and spans[-1].end == span.start:
            spans[-1] = Span(span.version, spans[-1].start, span.end)
        else:
            spans.append(span)
    return spans


def spans_told(told: Json, made: int) -> list[Span]:
    """From ``weight_versions`` where they tell of all ``made`` tokens, else from ``weight_version``."""
    spans = read_spans(told.get("weight_versions"))
    if spans and spans[-1].end == made:
        return spans
    version = told.get("weight_version")
    return [] if version is None else [Span(str(version), 0, made)]


def check_count(told: Any, due: int) -> None:
    """Raises SegmentError where there are not as many logprobs as tokens."""
    count = len(told) if isinstance(told, list) else 0
    if count != due:
        raise SegmentError(f"a segment of {due} tokens has {count} logprobs")


def only_choice(answer: Json) -> Json:
    """The first choice; an empty object where there is none."""
    choices = answer.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def joined_usage(first: Json, second: Json) -> Json:
    """Usage of one answer: the prompt counts once, what was made in both."""
    usage: Json = dict(second)
    usage.update((key, first[key]) for key in ("prompt_tokens", "prompt_tokens_details") if key in first)
    for key in ("completion_tokens", "reasoning_tokens"):
        if isinstance(first.get(key), int) and isinstance(second.get(key), int):
            usage[key] = first[key] + second[key]
    if isinstance(usage.get("prompt_tokens"), int) and isinstance(usage.get("completion_tokens"), int):
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
    return usage


def with_segments(answer: Json, segments: list[Json]) -> None:
    """Writes them into ``metadata``. The newest version stands first: who looks for the worker's version in these
    bytes finds that one."""
    newest = segments[-1]["weight_version"] if segments else None
    told = {} if newest is None else {"weight_version": newest}
    answer["metadata"] = {**told, **as_object(answer.get("metadata")), "segments": segments}


def as_ids(value: Any) -> list[int] | None:
    """A list of token ids, or None for anything else."""
    if isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return value
    return None


def as_count(value: Any) -> int | None:
    """A whole number of at least 0, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def as_object(value: Any) -> Json:
    """A JSON object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_texts(value: Any) -> list[str]:
    """A text or list of texts as a list."""
    listed = value if isinstance(value, list) else [value]
    return [item for item in listed if isinstance(item, str) and item]


def read_spans(value: Any) -> list[Span]:
    """SGLang's ``weight_versions``."""
    spans = []
    for item in value if isinstance(value, list) else []:
        start, end = as_count(as_object(item).get("start")), as_count(as_object(item).get("end"))
        if start is None or end is None:
            return []
        version = item.get("version")
        spans.append(Span(None if version is None else str(version), start, end))
    return spans


def told_spans(spans: Sequence[Span]) -> list[Json]:
    return [{"version": span.version, "start": span.start, "end": span.end} for span in spans]


def read_part(body: bytes) -> Json | None:
    """An answer's JSON object, or None."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
