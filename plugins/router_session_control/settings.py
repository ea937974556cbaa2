"""Settings of the plugin."""

from __future__ import annotations

from pydantic import Field

from router_core import PluginSettings


class SessionControlSettings(PluginSettings):
    """How long sessions hang, and how many are known."""

    hang_ttl_s: float = Field(default=600.0, gt=0)
    """Seconds after which a session that hangs goes on by itself, unless the call says otherwise."""
    max_hang_ttl_s: float = Field(default=86400.0, gt=0)
    """Longest time in seconds that a call may ask for."""
    session_ttl_s: float = Field(default=3600.0, gt=0)
    """Seconds without a turn after which a session is forgotten."""
    max_sessions: int = Field(default=100_000, ge=1)
    """Most sessions that are known; one more forgets the longest unused."""
