"""What was made of one answer so far: its parts joined, and who made which tokens. Knows no HTTP and no router."""

from __future__ import annotations

from typing import Any

from router_partial_rollout.wire import Json, SegmentError, Span, Wire


class Joined:
    """Parts of one answer, one behind the other. ``whole`` has its wire's shape, None while there is none."""

    def __init__(self) -> None:
        self.wire: Wire | None = None
        self.body: Json = {}
        """The request that the whole answer would be to."""
        self.prompt_ids: list[int] = []
        self.whole: Json | None = None
        self.last_part: Json | None = None
        """What `take` was given last."""
        self.count = 0
        """How many parts `take` was given."""
        self.first_version: str | None = None
        """Of the first token."""
        self._segments: list[tuple[str, Span]] = []

    @property
    def ids(self) -> list[int]:
        """The output so far."""
        return (self.wire.ids(self.whole) or []) if self.wire is not None and self.whole is not None else []

    @property
    def experts_start(self) -> int | None:
        """The first row of routed experts that is missing; None where nobody wants any."""
        if self.wire is None or self.whole is None or self.wire.experts(self.whole) is None:
            return None
        return len(self.prompt_ids) + len(self.ids) - 1

    def take(self, part: Json, worker_url: str, *, version: str | None) -> list[int]:
        """Puts a part behind what there is, and returns its ids. Raises SegmentError.

        ``version`` is the worker's, as the router knows it, for workers that do not tell.
        """
        wire = self.wire
        if wire is None:
            raise SegmentError("an answer in an unknown shape")
        ids = wire.ids(part)
        if ids is None:
            raise SegmentError("a segment does not tell its ids")
        if self.whole is not None or self.body:
            wire.check_logprobs(self.body, part)
        self.last_part = part
        self.count += 1
        offset = len(self.ids)
        if ids:
            spans = wire.spans(part) or [Span(version, 0, len(ids))]
            if not self._segments:
                self.first_version = spans[0].version
            self._segments += [(worker_url, span.moved(offset)) for span in spans]
        self.whole = part if self.whole is None else self.with_part(part)
        return ids

    def with_part(self, part: Json, *, is_growing: bool = False) -> Json:
        """``whole`` with this part behind it. A part that still grows has no experts yet. Raises SegmentError."""
        wire, whole = self.wire, self.whole
        if wire is None or whole is None:
            return part
        joined = wire.join(whole, part)
        if not is_growing:
            wire.set_experts(joined, self._joined_experts(wire, whole, part))
        return joined

    def _joined_experts(self, wire: Wire, whole: Json, part: Json) -> Any:
        first, second = wire.experts(whole), wire.experts(part)
        if first is None or not wire.ids(part):
            return second if first is None else first
        if second is None:
            raise SegmentError("a segment has no routed experts, the one before it has")
        rows = len(self.prompt_ids) + len(self.ids) - 1 - wire.experts_start(self.body)
        return wire.join_experts(first, rows, second, len(wire.ids(part) or ()))

    def tell_segments(self, answer: Json) -> None:
        """Writes into the answer who made which tokens, with which weights."""
        if self.wire is not None:
            told = [
                {"start": span.start, "end": span.end, "worker": worker, "weight_version": span.version}
                for worker, span in self._segments
                if span.start < span.end
            ]
            self.wire.set_segments(answer, told)
