"""Settings of the plugin."""

from __future__ import annotations

from itertools import pairwise

from pydantic import Field, field_validator

from router_core import PluginSettings


class MetricsSettings(PluginSettings):
    """What the page shows."""

    buckets_s: tuple[float, ...] = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
    """Upper bounds of the histograms of requests and attempts, in seconds, ascending."""
    worker_histograms: bool = True
    """Whether the two histograms of attempts are shown for each worker; they are most of a big pool's page."""
    hook_times: bool = True
    """Whether the time of every hook is taken; a few tenths of a microsecond each call."""
    lag_interval_s: float = Field(default=0.5, gt=0)
    """Seconds between two looks at how late the event loop wakes up."""

    @field_validator("buckets_s")
    @classmethod
    def _ascending(cls, bounds: tuple[float, ...]) -> tuple[float, ...]:
        if not bounds or bounds[0] <= 0 or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError("must be positive and ascending")
        return bounds
