"""Settings of the plugin."""

from __future__ import annotations

from pydantic import Field

from router_core import PluginSettings, per_exchange


class PromptGroupSettings(PluginSettings):
    """How long a group keeps its worker, and how many are remembered."""

    weight: float = Field(default=4.0, ge=0)
    """Factor of this plugin's scores: a session follows its group, hence above ``session_affinity``."""
    is_on: bool = per_exchange(True)
    """Whether groups are kept together; a profile may say no, for validation runs."""
    linger_s: float = Field(default=30.0, ge=0)
    """Seconds a group keeps its worker after its last running request has ended."""
    max_groups: int = Field(default=100_000, ge=1)
    """Most groups remembered; one more forgets the one that is idle longest."""
    max_id_characters: int = Field(default=256, ge=1)
    """Longest prompt id; a longer one is refused (400)."""
