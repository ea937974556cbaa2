"""Settings of the plugin."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from router_core import PluginSettings


class AdmissionSettings(PluginSettings):
    """How much a worker may have in flight, who is asked, and which worker comes first."""

    max_inflight_per_worker: int | None = Field(default=None, ge=1)
    """Most requests in flight at one worker. None: no bound."""
    max_inflight: int | None = Field(default=None, ge=1)
    """Most requests in flight at all workers together. None: no bound."""
    max_kv_usage: float | None = Field(default=None, gt=0, le=1)
    """Share of its KV cache in use from which a worker gets no new request; known from statistics that are pushed
    (``POST /workers/update_stats``). None: no bound."""
    kv_keys: list[str] = Field(default=["kv_usage", "token_usage", "kv_cache_usage_perc"], min_length=1)
    """Names under which the share of KV cache in use is pushed; the first that is there counts."""
    stats_ttl_s: float = Field(default=30.0, gt=0)
    """Seconds after which pushed statistics say nothing any more."""
    reserve_url: str = Field(default="", pattern=r"^(|/\S*|https?://\S+)$")
    """Where to ask before each dispatch: a path at the chosen worker, or the URL of one service. Empty: nowhere."""
    reserve_timeout_s: float = Field(default=2.0, gt=0)
    """Seconds that such a call may take."""
    reserve_retry_s: float = Field(default=1.0, gt=0)
    """Seconds that a worker gets no request after it refused one; also how often waiting requests look again."""
    max_reserve_calls: int = Field(default=8, ge=1)
    """Most reserve calls under way for one worker."""
    reserve_on_failure: Literal["hold", "admit"] = "hold"
    """What follows a reserve call without an answer in time."""
    sort: Literal["none", "version", "reserve"] = "none"
    """Which workers go first. ``version``: the newest for untagged requests, for tagged ones the oldest that will
    do. ``reserve``: those with the most room."""
