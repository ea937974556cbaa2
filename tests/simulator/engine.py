"""One inference worker: a queue, a prefix cache, prefill that stalls decoding, decoding that slows with the batch."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.simulator.kv_cache import KvCache, Segment


@dataclass(frozen=True, slots=True)
class Speed:
    """About an 8B model on one GPU of 80 GB; what matters here are the proportions."""

    step_s: float = 0.008
    """A decoding step of one request."""
    step_per_request_s: float = 0.00012
    """What each further request adds to a step."""
    prefill_tokens_per_s: float = 15_000.0
    max_running: int = 64
    kv_tokens: int = 400_000


@dataclass(slots=True, eq=False)
class Job:
    """One request at an engine. ``tag`` is the caller's."""

    tag: Any
    prompt: Sequence[Segment]
    output: Segment
    hit_tokens: int = 0

    @property
    def path(self) -> list[Segment]:
        return [*self.prompt, self.output]


class SimulatedEngine:
    """Every running request gets a token a step. A step is constant between events: time is reckoned, not stepped."""

    def __init__(self, speed: Speed) -> None:
        self.speed = speed
        self.cache = KvCache(speed.kv_tokens)
        self._waiting: deque[Job] = deque()
        self._running: list[tuple[float, int, Job]] = []
        self._serial = itertools.count()
        self._decoded = 0.0
        """Tokens that a request which ran from the beginning would have by now."""
        self._now = 0.0
        self._stalled_until = 0.0

    @property
    def load(self) -> int:
        return len(self._running) + len(self._waiting)

    def submit(self, job: Job, now: float) -> None:
        self._pass_time(now)
        self._waiting.append(job)
        self._admit()

    def next_end(self) -> float | None:
        """When the next request will end if nothing comes between."""
        if not self._running:
            return None
        left = self._running[0][0] - self._decoded
        return max(self._now, self._stalled_until) + max(0.0, left) * self._step_s()

    def finish(self, now: float) -> list[Job]:
        """The requests that have ended by now."""
        self._pass_time(now)
        ended = []
        while self._running and self._running[0][0] - self._decoded < 1e-6:
            _, _, job = heapq.heappop(self._running)
            self.cache.give_back(job.path)
            ended.append(job)
        self._admit()
        return ended

    def die(self, now: float) -> list[Job]:
        """Loses everything: the cache, and the requests it had."""
        self._pass_time(now)
        lost = [*(job for _, _, job in self._running), *self._waiting]
        self._running.clear()
        self._waiting.clear()
        self.cache.clear()
        self._stalled_until = now
        return lost

    def _step_s(self) -> float:
        return self.speed.step_s + self.speed.step_per_request_s * len(self._running)

    def _pass_time(self, now: float) -> None:
        free = now - max(self._now, self._stalled_until)
        if free > 0 and self._running:
            self._decoded += free / self._step_s()
        self._now = max(self._now, now)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.speed.max_running:
            job = self._waiting[0]
            hit = self.cache.hit_tokens(job.prompt)
            if not self.cache.take(job.path):
                if not self._running:
                    raise ValueError(f"a request of {sum(s.tokens for s in job.path)} tokens fits no cache")
                return
            self._waiting.popleft()
            job.hit_tokens = hit
            missing = sum(segment.tokens for segment in job.prompt) - hit
            self._stalled_until = max(self._now, self._stalled_until) + missing / self.speed.prefill_tokens_per_s
            heapq.heappush(self._running, (self._decoded + job.output.tokens, next(self._serial), job))
