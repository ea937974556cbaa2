"""Settings of the plugin."""

from __future__ import annotations

from pydantic import Field

from router_core import PluginSettings


class HealthSettings(PluginSettings):
    """When a worker counts as failed, how it is probed, and how it comes back."""

    interval_s: float = Field(default=2.0, gt=0)
    """Seconds between the end of one probe of a worker and the next."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Seconds a probe may take; below 5 a busy SGLang looks dead."""
    first_timeout_s: float = Field(default=20.0, gt=0)
    """Seconds a probe may take until the worker has answered for the first time."""
    starting_timeout_s: float = Field(default=1800.0, gt=0)
    """Seconds a worker that was never up may be starting before it counts as failed."""
    slow_start_s: float = Field(default=30.0, gt=0)
    """Seconds a worker may be starting until a warning names it and says why."""
    max_failures: int = Field(default=3, ge=1)
    """Consecutive failures of probes, or of requests, after which a worker is out."""
    max_interval_s: float = Field(default=30.0, gt=0)
    """Longest pause in seconds between two probes of a worker that is out."""
    trial_requests: int = Field(default=4, ge=1)
    """Most new requests in flight at a worker that came back, until one shows that it serves."""
    max_out_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the workers that may be out although they take connections; the last one never is."""
    path: str = Field(default="auto", pattern=r"^(auto$|/)")
    """What a probe asks for; ``auto``: ``/health``, or ``/ready`` where ``/health`` is slow and ``/ready`` is."""
