"""Trajectories: what the tree remembers of one root-to-leaf token sequence, beside its text and ids.

Ids are shared through the segments of the tree. Masks, logprobs and weight versions are not a part of the path:
siblings that sampled the same ids with slightly other logprobs would else be different branches. They hang on the
trajectory, and a turn that continues an earlier one refers to the runs of that one, so a session stores each logprob
once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

from router_radix_cache.tokens import PackedTokens, Span, add_span, spans_within

if TYPE_CHECKING:
    from router_radix_cache.segments import Segment

TRAJECTORY_BYTES = 1000
"""What a trajectory costs beside its tokens: the record, its runs and its places in the tree's tables, rounded up."""

SPAN_BYTES = 128


class SampledRuns:
    """The sampled spans of a trajectory and their logprobs: what ``parent`` has not, the rest is the parent's.

    ``references`` counts the trajectories and runs that need it; the tree drops its bytes from the account at zero.
    """

    __slots__ = ("logprobs", "parent", "references", "sampled_before", "spans")

    def __init__(self, parent: SampledRuns | None, spans: list[Span], logprobs: array[float]) -> None:
        self.parent = parent
        self.spans = spans
        self.logprobs = logprobs
        self.sampled_before: int = 0 if parent is None else parent.sampled_before + len(parent.logprobs)
        self.references = 0

    @property
    def byte_count(self) -> int:
        return len(self.spans) * SPAN_BYTES + 8 * len(self.logprobs)

    def chain(self) -> Iterator[SampledRuns]:
        """These runs and those they continue, last ones first."""
        runs: SampledRuns | None = self
        while runs is not None:
            yield runs
            runs = runs.parent

    def all_spans(self) -> list[Span]:
        """Every sampled span from the first token on, joined where they touch."""
        if self.parent is None:
            return self.spans
        found: list[Span] = []
        for runs in reversed(list(self.chain())):
            for span in runs.spans:
                add_span(found, span)
        return found

    def all_logprobs(self) -> array[float]:
        """The logprobs of every sampled token, in order."""
        found = array("d")
        for runs in reversed(list(self.chain())):
            found.extend(runs.logprobs)
        return found

    def are_start_of(self, tokens: PackedTokens, token_count: int) -> bool:
        """Whether the first ``token_count`` tokens of ``tokens`` were sampled exactly as these runs say, bit by bit."""
        spans = tokens.spans if token_count == len(tokens.ids) else spans_within(tokens.spans, 0, token_count)
        if self.all_spans() != spans:
            return False
        packed = tokens.logprobs.tobytes()
        if self.parent is None:
            return packed.startswith(self.logprobs)
        return all(packed.startswith(runs.logprobs, 8 * runs.sampled_before) for runs in self.chain())


NOTHING_SAMPLED = SampledRuns(None, [], array("d"))


def runs_beyond(earlier: SampledRuns | None, token_count: int, tokens: PackedTokens) -> SampledRuns:
    """Runs for ``tokens``, of which ``earlier`` tells the first ``token_count`` tokens."""
    skipped = 0 if earlier is None else earlier.sampled_before + len(earlier.logprobs)
    return SampledRuns(earlier, spans_within(tokens.spans, token_count, len(tokens)), tokens.logprobs[skipped:])


def take_runs(runs: SampledRuns) -> int:
    """Count one more user of ``runs``; the bytes this adds to the account."""
    runs.references += 1
    if runs.references > 1:
        return 0
    if runs.parent is not None:
        runs.parent.references += 1
    return runs.byte_count


def drop_runs(runs: SampledRuns) -> int:
    """Count one user less, and of what it continues if it was the last; the bytes this takes off the account."""
    freed = 0
    for used in runs.chain():
        used.references -= 1
        if used.references:
            break
        freed += used.byte_count
    return freed


class Trajectory:
    """One stored token sequence, under the ``rid`` and ``session_id`` it was made for.

    ``weight_version`` is the one of its last sampled token. ``holds`` counts the running requests that use it.
    """

    __slots__ = (
        "_digest",
        "byte_length",
        "holds",
        "rid",
        "runs",
        "segment",
        "serial",
        "session_id",
        "tick",
        "token_count",
        "used_s",
        "weight_version",
    )

    def __init__(self, rid: str | None, session_id: str | None, serial: int, tokens: PackedTokens) -> None:
        self.rid = rid
        self.session_id = session_id
        self.serial = serial
        self.token_count = len(tokens.ids)
        self.byte_length = tokens.ends[-1] if tokens.ends else 0
        self.weight_version = tokens.spans[-1].weight_version if tokens.spans else None
        self._digest: int | None = None
        self.segment: Segment | None = None
        self.runs = NOTHING_SAMPLED  # until it is stored
        self.tick = 0
        self.used_s = 0.0
        self.holds = 0

    @property
    def digest(self) -> int:
        """Tells samples of the same ids apart: it is equal when mask, logprobs and weight versions are."""
        if self._digest is None:
            self._digest = hash((tuple(self.runs.all_spans()), self.runs.all_logprobs().tobytes()))
        return self._digest

    @property
    def is_stored(self) -> bool:
        return self.segment is not None
