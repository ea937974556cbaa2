"""The situations in which policies are compared."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.simulator.engine import Speed
from tests.simulator.simulation import Loss, Scenario
from tests.simulator.trace import Shape


@dataclass(frozen=True, slots=True)
class Situation:
    """A kind of trace and the pool that serves it."""

    name: str
    about: str
    shape: Shape = field(default_factory=Shape)
    scenario: Scenario = field(default_factory=Scenario)


_LONG_TAIL = replace(Shape(), groups=16, turns_median=4.0, turns_sigma=1.3, max_turns=80, output_sigma=1.4)

SITUATIONS = [
    Situation("step", "768 sessions of 48 groups at once over 8 workers of 64 slots and 400k tokens of cache"),
    Situation(
        "async",
        "the same sessions, 384 at a time",
        scenario=Scenario(concurrent_sessions=384),
    ),
    Situation(
        "tight",
        "the same as step with 120k tokens of cache",
        scenario=Scenario(speed=Speed(kv_tokens=120_000)),
    ),
    Situation(
        "long tail",
        "256 sessions of 16 groups at once, a few of them very long",
        shape=_LONG_TAIL,
    ),
    Situation(
        "single turn",
        "1024 requests of 64 prompts at once, long-tailed answers, no second turn",
        shape=replace(Shape(), groups=64, turns_median=1.0, turns_sigma=0.0, output_median=800.0, max_output=8192),
    ),
    Situation(
        "few",
        "16 sessions of one group at once over 8 workers: a validation prompt",
        shape=replace(Shape(), groups=1),
    ),
    Situation(
        "loss",
        "the same as async; one worker dies after 60 s and is back, empty, 60 s later",
        scenario=Scenario(concurrent_sessions=384, losses=(Loss(3, 60.0, 60.0),)),
    ),
]
