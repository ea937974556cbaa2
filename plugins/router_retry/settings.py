"""Settings of the plugin."""

from __future__ import annotations

from pydantic import Field

from router_core import PluginSettings, per_exchange


class RetrySettings(PluginSettings):
    """How often a request is tried, and after what."""

    max_attempts: int = per_exchange(3, ge=1)
    """Most workers that one request is tried on; 1 tries no second one."""
    retry_suspects: bool = per_exchange(False)
    """Whether a request that was sent and whose worker was lost then gets one more try. It may have been the
    request that killed the worker, and it may be processed twice."""
    retry_statuses: list[int] = per_exchange([])
    """Statuses of workers' answers that are dropped and tried elsewhere; the request may be processed twice."""
    max_body_bytes: int = Field(default=8 << 20, ge=0)
    """Longest body in bytes that is kept, so that ``retry_suspects`` and ``retry_statuses`` can send it again."""
