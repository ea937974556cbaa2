"""What a rollout brought: its trace, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from router_tito.trace import Trace

Reward: TypeAlias = "float | dict[str, Any]"
"""A number, or an object of numbers and what else a trainer's own reward code wants."""


@dataclass(frozen=True, slots=True, eq=False)
class TraceOutcome:
    """One finished rollout, as composers take it.

    ``trajectory_id`` names the rollout in the words of whoever ran it (SkyRL: a ``TrajectoryID``) and is handed
    through. ``stop_reason`` is why the rollout ended, None where nothing but the model ended it. ``generation_time`` is
    the seconds that workers took.
    """

    trace: Trace
    trajectory_id: Any
    reward: Reward | None = None
    stop_reason: str | None = None
    generation_time: float | None = None
    session_id: str = ""
    branch_rewards: Mapping[int, Reward] = field(default_factory=dict)
    """Answer's node -> reward of the branches it is in, before ``reward``."""
    missed: Mapping[str, int] = field(default_factory=dict)
    """Answered turns that the trace knows nothing of: reason -> how many."""

    def reward_of(self, node_ids: tuple[int, ...]) -> Reward | None:
        """The reward of a branch: that of the last answer in it that has one of its own, else the rollout's."""
        own = (self.branch_rewards[node_id] for node_id in reversed(node_ids) if node_id in self.branch_rewards)
        return next(own, self.reward)
