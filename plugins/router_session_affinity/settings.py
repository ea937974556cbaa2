"""Settings of the plugin."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from router_core import PluginSettings, per_exchange


class SessionAffinitySettings(PluginSettings):
    """What is kept together, where, how strictly, and for how long."""

    weight: float = Field(default=2.0, ge=0)
    """Factor of this plugin's scores: twice a balancer's, so that load alone does not move a session."""
    mode: Literal["sticky", "hash"] = per_exchange("sticky")
    """``sticky``: a table of sessions. ``hash``: consistent hashing, the same worker on every router replica."""
    key: Literal["session", "group", "none"] = per_exchange("session")
    """What stays together: the turns of a session, the requests of a group (prompt id), or nothing (pins only)."""
    overload_absolute: int = per_exchange(8, ge=0)
    """Requests in flight above the least loaded worker's that a session's worker may have..."""
    overload_relative: float = per_exchange(1.5, ge=1)
    """...or times as many; above both its sessions may leave it."""
    hard_pins: bool = per_exchange(False)
    """Whether a pin is hard where the request does not say so itself (``x-hard-pin``)."""
    ttl_s: float = Field(default=3600.0, gt=0)
    """Seconds without a turn after which a session is forgotten."""
    max_sessions: int = Field(default=100_000, ge=1)
    """Most sessions remembered; one more forgets the one that was used longest ago."""
    max_key_characters: int = Field(default=256, ge=1)
    """Longest key of a session or group; a longer one is refused (400)."""
    virtual_nodes: int = Field(default=128, ge=1, le=4096)
    """Points of each worker on the ring of ``hash``: more spread keys better and cost memory."""
