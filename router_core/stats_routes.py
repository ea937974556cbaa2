"""The statistics of workers' load that a coordinator or an engine pushes, and their listing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from router_core.bodies import checked_number, read_json
from router_core.clock import Clock
from router_core.errors import Reject
from router_core.worker_updates import update_workers
from router_core.workers import WorkerTable

MAX_STATS = 64
MAX_STAT_NAME_CHARACTERS = 64


class StatsRoutes:
    """``/workers/update_stats`` and ``/workers/stats``: what a coordinator or engine says of a worker's load."""

    def __init__(self, workers: WorkerTable, clock: Clock) -> None:
        self._workers = workers
        self._clock = clock

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/workers/update_stats", self.update, methods=["POST"]),
            Route("/workers/stats", self.list, methods=["GET"]),
        ]

    async def update(self, request: Request) -> Response:
        """Every number beside ``worker_id`` and ``dp_rank``, or in ``stats``, replaces what was known of the worker."""
        status, told = update_workers(await read_json(request), self._workers, _checked_stats, self._workers.set_stats)
        return JSONResponse(told, status)

    async def list(self, request: Request) -> Response:
        now = self._clock.now()
        told = [
            {
                "worker_id": worker.id,
                "url": worker.url,
                "dp_rank": worker.dp_rank,
                "inflight": worker.inflight,
                "stats": worker.stats,
                "age_s": round(now - worker.stats_at, 3) if worker.stats else None,
            }
            for worker in self._workers
        ]
        return JSONResponse({"workers": told, "total": len(told)})


def _checked_stats(entry: Mapping[str, Any]) -> dict[str, float]:
    stats = entry.get("stats")
    if stats is None:
        stats = {key: value for key, value in entry.items() if key not in ("worker_id", "url", "dp_rank")}
    if not isinstance(stats, dict) or len(stats) > MAX_STATS:
        raise Reject(400, "bad_value", f"stats must be an object of at most {MAX_STATS} numbers", "stats")
    for name in stats:
        if len(name) > MAX_STAT_NAME_CHARACTERS or not name.isprintable():
            raise Reject(
                400, "bad_value", f"a statistic's name has 1 to {MAX_STAT_NAME_CHARACTERS} characters", "stats"
            )
    return {name: checked_number(value, name) for name, value in stats.items()}
