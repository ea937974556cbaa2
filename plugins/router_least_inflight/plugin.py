"""The least loaded worker gets the next request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from router_core import Exchange, Scores, Worker, hookimpl


class LeastInflight:
    """Scores a worker by how few requests are in flight at it: ``1 / (1 + inflight)``; ties rotate."""

    requires_api: ClassVar[str] = ">=1,<2"
    several_processes: ClassVar[bool] = True

    @hookimpl
    def score_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> Scores:
        return {worker: 1.0 / (1 + worker.inflight) for worker in workers}
