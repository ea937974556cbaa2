"""What is known of one worker's health, and what follows from each sign of it. Knows no HTTP, no clock, no pool."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from router_core import WorkerState


class Sign(Enum):
    """What a probe or a request showed of a worker."""

    ANSWERED = "answered"
    """It is at work: a probe's 2xx to 4xx, a request's answer that is no fault of its own."""
    BUSY = "busy"
    """It pushed a request back (429, 503): neither a success nor a fault."""
    NOT_UP = "not up"
    """It answered a probe with 503."""
    REFUSED = "refused"
    """Its machine refused the connection: nobody listens."""
    SILENT = "silent"
    """No answer came in time."""
    FAILED = "failed"
    """The connection broke, or what came was a 5xx or no HTTP."""


class Verdict(Enum):
    """What should become of a worker."""

    STAY = "stay"
    AWAIT_START = "await start"
    """It was never up: out until its first success, and nothing is counted."""
    OUT = "out"
    BACK = "back"


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that verdicts depend on."""

    max_failures: int
    starting_timeout_s: float
    interval_s: float
    max_interval_s: float


@dataclass(slots=True)
class HealthRecord:
    """One generation of one worker. Times are clock seconds.

    Failures are consecutive, and counted apart for probes and requests: a worker that answers every probe and fails
    every request is out, and one that fails two probes of three is not.
    """

    generation: int
    created_at: float
    has_answered: bool = False
    """Whether it ever showed that it is up."""
    is_slow: bool = False
    """Whether it was named as one that is starting for long."""
    probe_failures: int = 0
    request_failures: int = 0
    answered_at: float = 0.0
    """Newest success; failures that are older and told later count no more."""
    probed_at: float = 0.0
    """When the newest probe had ended; at first when the record began."""
    on_trial: bool = False
    """Back, and not yet seen to serve a request since."""
    returned_at: float = 0.0
    inflight_at_return: int = 0
    vain: int = 0
    """Vain probes and failed trials since it was last seen to serve: each doubles the pause between probes."""
    is_refusing: bool = False
    """Whether it is out because it refused connections."""

    def __post_init__(self) -> None:
        self.probed_at = self.created_at

    @property
    def failures(self) -> int:
        return max(self.probe_failures, self.request_failures)

    # ------------------------------------------------------------------------------------------------------- signs
    def after_probe(self, sign: Sign, state: WorkerState, limits: Limits, now: float, *, has_bytes: bool) -> Verdict:
        """What follows from a probe that has just ended.

        ``has_bytes``: the worker sent something since the probe before. That is life where this one went unanswered (a
        long prefill keeps SGLang's ``/health`` waiting), and no excuse for an answer that says otherwise.
        """
        self.probed_at = now
        if sign is Sign.SILENT and has_bytes:
            sign = Sign.ANSWERED
        if sign is Sign.ANSWERED:
            self.has_answered, self.probe_failures, self.answered_at = True, 0, now
            return Verdict.STAY if state is WorkerState.READY else Verdict.BACK
        if state is WorkerState.STARTING:
            return Verdict.OUT if now - self.created_at > limits.starting_timeout_s else Verdict.AWAIT_START
        if state is WorkerState.QUARANTINED:
            self.vain += 1
            return Verdict.STAY
        if not self.has_answered and sign is not Sign.FAILED:
            return Verdict.AWAIT_START
        if sign is Sign.REFUSED:
            return Verdict.OUT
        self.probe_failures += 1
        return Verdict.OUT if self.probe_failures >= limits.max_failures else Verdict.STAY

    def after_request(self, sign: Sign, state: WorkerState, limits: Limits, ended_at: float) -> Verdict:
        """What follows from a request that ended at ``ended_at``, which may be told much later."""
        if sign is Sign.BUSY:
            return Verdict.STAY
        if sign is Sign.ANSWERED:
            self.serve(ended_at)
            return Verdict.BACK if state is WorkerState.STARTING else Verdict.STAY
        if ended_at < self.answered_at:
            return Verdict.STAY
        if sign is Sign.REFUSED:
            return Verdict.OUT if self.has_answered else Verdict.AWAIT_START
        self.request_failures += 1
        return Verdict.OUT if self.on_trial or self.request_failures >= limits.max_failures else Verdict.STAY

    def serve(self, at: float) -> None:
        """A request was answered well at this time."""
        self.has_answered, self.on_trial = True, False
        self.probe_failures = self.request_failures = self.vain = 0
        if at > self.answered_at:
            self.answered_at = at

    # --------------------------------------------------------------------------------------------------- in and out
    def leave(self, *, is_refusing: bool) -> None:
        """It is out. Out of a trial, it is asked again later than before."""
        self.vain += self.on_trial
        self.on_trial, self.is_refusing = False, is_refusing

    def come_back(self, now: float, inflight: int, *, on_trial: bool) -> None:
        """It is back, with ``inflight`` requests that it never stopped serving."""
        self.probe_failures = self.request_failures = 0
        self.on_trial, self.is_refusing = on_trial, False
        self.returned_at, self.inflight_at_return = now, inflight

    def see_byte(self, last_byte_at: float) -> None:
        """A byte that came since its return shows that it serves: the trial is over."""
        if last_byte_at > self.returned_at:
            self.on_trial = False

    def has_room(self, inflight: int, trial_requests: int) -> bool:
        """Whether one more request may go to it: on trial only so many beside those it never stopped serving."""
        return not self.on_trial or inflight < self.inflight_at_return + trial_requests

    def pause_s(self, state: WorkerState, limits: Limits) -> float:
        """Seconds until the next probe: doubled each time while it is out, up to a bound."""
        if state is not WorkerState.QUARANTINED:
            return limits.interval_s
        return max(limits.interval_s, min(limits.max_interval_s, limits.interval_s * 2.0 ** min(self.vain, 20)))
