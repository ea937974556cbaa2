"""How much a tree holds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TreeStats:
    """Sizes now, and how many trajectories were dropped by cause: ``lru``, ``ttl``, ``weight_version``, ``cleared``."""

    trajectories: int
    sessions: int
    segments: int
    tokens: int
    bytes: int
    dropped: dict[str, int] = field(default_factory=dict)
