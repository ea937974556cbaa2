"""Counts what ends, looks at what is, and shows both on ``GET /metrics``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from router_core import Exchange, HookTimes, Outcome, PluginSettings, Router, Worker, WorkerState, hookimpl
from router_metrics.merge import merge_pages
from router_metrics.page import render, take_snapshot
from router_metrics.settings import MetricsSettings
from router_metrics.tally import Histogram, Tally

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """The router's own Prometheus page, and the place where other plugins' metrics appear."""

    requires_api: ClassVar[str] = ">=1,<2"
    several_processes: ClassVar[bool] = True
    Settings: ClassVar[type[PluginSettings]] = MetricsSettings

    def __init__(self, settings: MetricsSettings) -> None:
        self._settings = settings
        self._tally = Tally(settings.buckets_s)
        self._lag = Histogram(LAG_BOUNDS_S)
        self._times = HookTimes()
        self._router: Router

    @hookimpl
    async def startup(self, router: Router) -> None:
        self._router = router
        if self._settings.hook_times:
            self._times = router.time_hooks()
        router.spawn(self._watch_loop(), name="loop lag")

    @hookimpl
    def routes(self) -> Sequence[BaseRoute]:
        return [Route("/metrics", self._show, methods=["GET"])]

    @hookimpl
    def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
        self._tally.add(exchange, outcome)

    @hookimpl
    def session_moved(self) -> None:
        self._tally.moves += 1

    @hookimpl
    def worker_changed(self, worker: Worker, new: WorkerState) -> None:
        if new is WorkerState.REMOVED:
            self._tally.forget(worker)

    async def _show(self, request: Request) -> Response:
        pages = await self._router.tell_all(self, "page")
        page = pages[0] if len(pages) == 1 else await asyncio.to_thread(merge_pages, pages)
        return Response(page, headers={"content-type": PROMETHEUS_TEXT})

    @hookimpl
    async def told(self, message: str) -> bytes:
        """The page of this process."""
        snapshot = take_snapshot(
            self._router,
            self._tally,
            self._lag,
            ((time.plugin, time.hook, time.calls, time.seconds) for time in self._times),
            with_worker_histograms=self._settings.worker_histograms,
        )
        page = await asyncio.to_thread(render, snapshot)
        return page + self._router.plugin_metrics().encode()

    async def _watch_loop(self) -> None:
        now, interval_s = asyncio.get_running_loop().time, self._settings.lag_interval_s
        while True:
            since = now()
            await asyncio.sleep(interval_s)
            self._lag.observe(max(0.0, now() - since - interval_s))
