"""Hangs the longest sessions while the workers' KV caches are full, and lets them go on when there is room again.

A strategy beside the mechanism: `session_control` hangs and continues, this plugin says whom and when.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from router_core import ConfigError, PluginSettings, Router, Worker, hookimpl


class CapacityControl:
    """Looks at the workers' pushed statistics every ``interval_s``."""

    requires_api = ">=1,<2"
    name = "capacity_control"

    class Settings(PluginSettings):
        high: float = Field(default=0.9, gt=0, le=1)
        """KV use (0 to 1, the fullest worker's) from which on sessions are hung."""
        low: float = Field(default=0.7, ge=0, lt=1)
        """KV use below which they go on again, one in each look."""
        at_once: int = Field(default=1, ge=1)
        """Sessions that are hung in one look; the next look sees what that brought."""
        interval_s: float = Field(default=1.0, gt=0)
        """Seconds between two looks."""
        stats_ttl_s: float = Field(default=30.0, gt=0)
        """Seconds after which a worker's statistics say nothing any more."""
        hang_ttl_s: float = Field(default=600.0, gt=0)
        """Seconds after which a session goes on whatever the workers say."""
        keys: list[str] = Field(default=["kv_usage", "token_usage", "kv_cache_usage_perc"], min_length=1)
        """Names under which KV use is pushed (``POST /workers/update_stats``); the first that is there counts."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._router: Router
        self._hung: list[str] = []
        """Ids of the sessions that hang by this plugin, the first one first."""

    @hookimpl
    async def startup(self, router: Router) -> None:
        self._router = router
        router.spawn(self._watch(), name="capacity control")

    async def _watch(self) -> None:
        while True:
            await self._router.clock.sleep(self._settings.interval_s)
            self.look()

    def look(self) -> None:
        """Hangs, or continues, or does nothing."""
        control = getattr(self._router, "session_control", None)
        if control is None:
            raise ConfigError("capacity_control needs the plugin session_control before it", key="enabled")
        use = kv_use(self._router.workers, self._settings, self._router.clock.now())
        if use is None:
            return
        if use >= self._settings.high:
            self._hang(control)
        elif use < self._settings.low:
            self._resume(control)

    def _hang(self, control: Any) -> None:
        """The longest that do not hang; one is always left, so that somebody gets on."""
        going = sorted((r for r in control.sessions if not r.is_hung), key=lambda r: -r.total_tokens)
        chosen = [record for record in going[: len(going) - 1] if record.total_tokens][: self._settings.at_once]
        control.hang(chosen, self._settings.hang_ttl_s)
        self._hung += [record.id for record in chosen]

    def _resume(self, control: Any) -> None:
        """The shortest of ours first: it needs the least room."""
        records = [record for each in self._hung if (record := control.sessions.get(each)) and record.is_hung]
        records.sort(key=lambda record: record.total_tokens)
        control.resume(records[:1])
        self._hung = [record.id for record in records[1:]]


def kv_use(workers: Iterable[Worker], settings: CapacityControl.Settings, now: float) -> float | None:
    """Of the fullest worker whose statistics are fresh; None if no worker says."""
    uses = [
        next((worker.stats[key] for key in settings.keys if key in worker.stats), None)
        for worker in workers
        if now - worker.stats_at <= settings.stats_ttl_s
    ]
    return max((use for use in uses if use is not None), default=None)
