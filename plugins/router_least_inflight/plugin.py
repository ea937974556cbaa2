"""The least loaded worker gets the next request."""

from __future__ import annotations

from collections.abc import Sequence

from router_core import Exchange, PluginSettings, Scores, Worker, hookimpl


class LeastInflight:
    """Scores a worker by how few requests are in flight at it: ``1 / (1 + inflight)``; ties rotate."""

    requires_api = ">=1,<2"
    several_processes = True

    class Settings(PluginSettings):
        pass

    def __init__(self, settings: Settings) -> None:
        pass

    @hookimpl
    def score_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> Scores:
        return {worker: 1.0 / (1 + worker.inflight) for worker in workers}
