"""Settings of the plugin."""

from __future__ import annotations

from pydantic import Field

from router_core import PluginSettings, per_exchange


class EngineControlSettings(PluginSettings):
    """Which rids are known, and how long a worker gets for a verb."""

    inject_rid: bool = per_exchange(False)
    """Whether a ``/generate`` without a rid is given one, so that it can be aborted when its client leaves."""
    abort_on_leave: bool = per_exchange(True)
    """Whether a request with a rid whose client left is aborted at its worker by name, too."""
    max_rid_body_bytes: int = Field(default=8 << 20, ge=0)
    """Longest request body that is read to find its rid; 0: none is, and an abort by rid goes to all."""
    max_rids: int = Field(default=100_000, ge=0)
    """Most rids of running requests that are known; an abort of another goes to all."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Seconds a worker gets for a verb (loading weights takes long)."""
    out_timeout_s: float = Field(default=10.0, gt=0)
    """The same for a worker that is quarantined or starting."""
    info_timeout_s: float = Field(default=5.0, gt=0)
    """Seconds until the next worker is asked what it serves."""
    metrics_timeout_s: float = Field(default=5.0, gt=0)
    """Seconds a worker gets to show its metrics."""
    window_ttl_s: float = Field(default=3600.0, gt=0)
    """Seconds after which a pause by a verb that nobody ended counts as over: what a worker then aborts unasked
    is its own fault again. Others see it in ``worker.windows``."""
