"""Counts and histograms of what has ended. Cheap to add to, and bounded whatever happens."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final

from router_core import Attempt, AttemptWithdrawn, Exchange, Outcome, OutcomeKind, Worker, WorkerState

MAX_CODES: Final = 64
OTHER = "other"
OK: Final = OutcomeKind.OK
CLIENT_LEFT: Final = OutcomeKind.CLIENT_LEFT
REMOVED: Final = WorkerState.REMOVED


class Histogram:
    """How many observations were at most each of ``bounds`` (seconds, ascending), and their sum."""

    __slots__ = ("_above", "_place", "_up_to", "bounds", "counts", "seconds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """One for each bound, not cumulated, and one for what is above all."""
        self.seconds = 0.0
        self._place, self._above, self._up_to = 0, -math.inf, -math.inf
        """Of the newest observation, and what belongs there: most are like the one before."""

    def observe(self, seconds: float) -> None:
        if not self._above < seconds <= self._up_to:
            self._find(seconds)
        self.counts[self._place] += 1
        self.seconds += seconds

    def _find(self, seconds: float) -> None:
        bounds = self.bounds
        self._place = place = bisect_left(bounds, seconds)
        self._above = bounds[place - 1] if place else -math.inf
        self._up_to = bounds[place] if place < len(bounds) else math.inf

    def copy(self) -> Histogram:
        copy = Histogram(self.bounds)
        copy.counts, copy.seconds = list(self.counts), self.seconds
        return copy


class Outcomes:
    """How many ended in which way. The usual way has a field of its own: to hash a kind costs more than to compare."""

    __slots__ = ("_ok", "_others")

    def __init__(self) -> None:
        self._ok = 0
        self._others: Counter[str] = Counter()

    def add(self, kind: OutcomeKind) -> None:
        if kind is OK:
            self._ok += 1
        else:
            self._others[kind] += 1

    def by_kind(self) -> dict[str, int]:
        """Of those kinds that came."""
        return {OK: self._ok, **self._others} if self._ok else dict(self._others)


class WorkerTally:
    """The attempts at one worker."""

    __slots__ = ("attempts", "first_byte", "upstream")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.attempts = Outcomes()
        self.first_byte = Histogram(bounds)
        self.upstream = Histogram(bounds)


class Tally:
    """Everything that has ended. A worker's part goes when the worker goes."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.outcomes = Outcomes()
        self.codes: Counter[str] = Counter()
        self.request = Histogram(bounds)
        self.queue = Histogram(bounds)
        self.retries = 0
        self.moves = 0
        self.hold = Histogram(bounds)
        self.workers: dict[Worker, WorkerTally] = {}

    def add(self, exchange: Exchange, outcome: Outcome) -> None:
        """Takes in an exchange that has ended."""
        self.outcomes.add(outcome.kind)
        if outcome.code is not None:
            is_known = outcome.code in self.codes or len(self.codes) < MAX_CODES
            self.codes[outcome.code if is_known else OTHER] += 1
        started_at, ended_at = exchange.started_at, exchange.ended_at
        if ended_at is not None:
            self.request.observe(ended_at - started_at)
        if exchange.hold_place is not None:
            self.hold.observe(exchange.held_s)
        attempts = exchange.attempts
        if len(attempts) != 1 or attempts[0].error is not None:
            attempts = [attempt for attempt in attempts if not isinstance(attempt.error, AttemptWithdrawn)]
            if not attempts:
                return
            self.retries += len(attempts) - 1
            for attempt in attempts[:-1]:
                self._add_attempt(attempt, OK)
        self.queue.observe(attempts[0].started_at - started_at)
        self._add_attempt(attempts[-1], outcome.kind)

    def _add_attempt(self, attempt: Attempt, end: OutcomeKind) -> None:
        """``end`` is how its exchange ended, if it was its last one."""
        worker, outcome = attempt.worker, attempt.outcome
        if worker.state is REMOVED or outcome is None:
            return
        of_worker = self.workers.get(worker)
        if of_worker is None:
            of_worker = self.workers[worker] = WorkerTally(self._bounds)
        # whoever gave the answer up cannot know why
        of_worker.attempts.add(CLIENT_LEFT if end is CLIENT_LEFT else outcome.kind)
        started_at, first_byte_at, ended_at = attempt.started_at, attempt.first_byte_at, attempt.ended_at
        if first_byte_at is not None:
            of_worker.first_byte.observe(first_byte_at - started_at)
        if ended_at is not None:
            of_worker.upstream.observe(ended_at - started_at)

    def forget(self, worker: Worker) -> None:
        self.workers.pop(worker, None)
