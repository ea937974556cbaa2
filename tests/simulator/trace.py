"""Rollouts to simulate: groups of sessions that share a prompt, with long-tailed turns; a seed gives the same ones."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session and what happens after its answer. Lengths in tokens."""

    new_tokens: int
    """What the prompt has beyond the earlier turns: a task, or a tool's output."""
    output_tokens: int
    wait_s: float
    """Seconds that tools or the environment take before the next turn."""


@dataclass(slots=True)
class Session:
    """One agent run."""

    id: str
    group: str
    shared_tokens: int
    """The group's common prompt, before the first turn's own tokens."""
    turns: list[Turn] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Shape:
    """How rollouts are drawn: medians and spreads (sigma) of lognormal lengths, with caps."""

    groups: int = 48
    samples: int = 16
    """Sessions of a group."""
    shared_median: float = 1500.0
    shared_sigma: float = 0.6
    turns_median: float = 5.0
    turns_sigma: float = 0.8
    max_turns: int = 40
    new_median: float = 250.0
    new_sigma: float = 1.0
    max_new: int = 4000
    output_median: float = 200.0
    output_sigma: float = 1.1
    max_output: int = 4096
    wait_median_s: float = 1.0
    wait_sigma: float = 1.2
    max_wait_s: float = 60.0


def draw_trace(shape: Shape, seed: int) -> list[Session]:
    """The sessions of one rollout step, in the order in which they start: group by group."""
    draws = random.Random(seed)

    def length(median: float, sigma: float, cap: float) -> float:
        return min(cap, draws.lognormvariate(math.log(median), sigma))

    sessions = []
    for group in range(shape.groups):
        shared = int(length(shape.shared_median, shape.shared_sigma, 8000))
        for sample in range(shape.samples):
            session = Session(f"s{group}-{sample}", f"p{group}", shared)
            for _ in range(max(1, round(length(shape.turns_median, shape.turns_sigma, shape.max_turns)))):
                session.turns.append(
                    Turn(
                        1 + int(length(shape.new_median, shape.new_sigma, shape.max_new)),
                        1 + int(length(shape.output_median, shape.output_sigma, shape.max_output)),
                        length(shape.wait_median_s, shape.wait_sigma, shape.max_wait_s),
                    )
                )
            sessions.append(session)
    return sessions
