"""Counts and histograms of what has ended. Cheap to add to, and bounded whatever happens."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from router_core import AttemptWithdrawn, Exchange, Outcome, OutcomeKind, Worker

MAX_CODES = 64
OTHER = "other"


class Histogram:
    """How many observations were at most each of ``bounds`` (seconds, ascending), and their sum."""

    __slots__ = ("bounds", "counts", "seconds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """One for each bound, not cumulated, and one for what is above all."""
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds

    def copy(self) -> Histogram:
        copy = Histogram(self.bounds)
        copy.counts, copy.seconds = list(self.counts), self.seconds
        return copy


class WorkerTally:
    """The attempts at one worker."""

    __slots__ = ("attempts", "first_byte", "upstream")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.attempts: Counter[str] = Counter()
        self.first_byte = Histogram(bounds)
        self.upstream = Histogram(bounds)


class Tally:
    """Everything that has ended. A worker's part goes when the worker goes."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.outcomes: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()
        self.request = Histogram(bounds)
        self.queue = Histogram(bounds)
        self.retries = self.moves = 0
        self.hold = Histogram(bounds)
        self.workers: dict[Worker, WorkerTally] = {}

    def add(self, exchange: Exchange, outcome: Outcome) -> None:
        """Takes in an exchange that has ended."""
        self.outcomes[outcome.kind] += 1
        if outcome.code is not None:
            is_known = outcome.code in self.codes or len(self.codes) < MAX_CODES
            self.codes[outcome.code if is_known else OTHER] += 1
        if exchange.ended_at is not None:
            self.request.observe(exchange.ended_at - exchange.started_at)
        if exchange.hold_place is not None:
            self.hold.observe(exchange.held_s)
        attempts = [attempt for attempt in exchange.attempts if not isinstance(attempt.error, AttemptWithdrawn)]
        if not attempts:
            return
        self.queue.observe(attempts[0].started_at - exchange.started_at)
        self.retries += len(attempts) - 1
        for attempt in attempts:
            if attempt.worker.is_gone or attempt.outcome is None:
                continue
            kind = attempt.outcome.kind
            if attempt is attempts[-1] and outcome.kind is OutcomeKind.CLIENT_LEFT:
                kind = outcome.kind  # whoever gave the answer up cannot know why
            of_worker = self.workers.get(attempt.worker)
            if of_worker is None:
                of_worker = self.workers[attempt.worker] = WorkerTally(self._bounds)
            of_worker.attempts[kind] += 1
            if attempt.first_byte_at is not None:
                of_worker.first_byte.observe(attempt.first_byte_at - attempt.started_at)
            if attempt.ended_at is not None:
                of_worker.upstream.observe(attempt.ended_at - attempt.started_at)

    def forget(self, worker: Worker) -> None:
        self.workers.pop(worker, None)
