"""How far a rollout is continued, and what became of all of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Limits:
    """When an abort is not the end. ``is_always``: also outside windows."""

    is_always: bool
    window_grace_s: float
    max_dispatches: int
    max_idle_dispatches: int
    continues_lost: bool


@dataclass(slots=True)
class Counts:
    """Of all rollouts of a router."""

    continued: int = 0
    """Dispatches that continued an aborted generation."""
    joined: int = 0
    """Answers made of more than one segment."""
    kept_tokens: int = 0
    """Tokens that an abort would have lost."""
    final: Counter[str] = field(default_factory=Counter)
    """Aborts that were passed on, by why."""
