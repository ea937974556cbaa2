"""Takes failing workers out and brings them back, by probes and by what traffic shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from router_core import Exchange, Outcome, PluginSettings, Router, Worker, WorkerState, hookimpl
from router_health.probe import Prober
from router_health.record import Limits
from router_health.settings import HealthSettings
from router_health.watch import Watch

COUNTS = ("probes", "failed_probes", "ejections", "returns", "kept_in")


class Health:
    """Quarantines a worker after consecutive failures, at once when it refuses connections; probes bring it back."""

    requires_api: ClassVar[str] = ">=1,<2"
    several_processes: ClassVar[bool] = True
    Settings: ClassVar[type[PluginSettings]] = HealthSettings

    def __init__(self, settings: HealthSettings) -> None:
        self._settings = settings
        self._watch: Watch | None = None

    @hookimpl
    async def startup(self, router: Router) -> None:
        settings = self._settings
        self._watch = Watch(
            router,
            Prober(router.control, router.clock, settings.path),
            Limits(
                max_failures=settings.max_failures,
                starting_timeout_s=settings.starting_timeout_s,
                interval_s=settings.interval_s,
                max_interval_s=settings.max_interval_s,
            ),
            timeout_s=settings.timeout_s,
            first_timeout_s=settings.first_timeout_s,
            slow_start_s=settings.slow_start_s,
            trial_requests=settings.trial_requests,
            max_out_share=settings.max_out_share,
        )
        for worker in router.workers:
            self._watch.begin(worker)

    @hookimpl
    def worker_changed(self, worker: Worker, new: WorkerState) -> None:
        if self._watch is None:
            return
        if new is WorkerState.REMOVED:
            self._watch.forget(worker)
        elif self._watch.is_new(worker):
            self._watch.begin(worker)

    @hookimpl
    def filter_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> Sequence[Worker] | None:
        watch = self._watch
        if watch is None:
            return None
        if exchange.attempts:  # what its earlier attempts showed holds for this choice already
            watch.learn_all(exchange)
            workers = [worker for worker in workers if worker.is_ready]
        elif not watch.has_trials:
            return None
        kept = []
        for worker in workers:
            if watch.has_room(worker):
                kept.append(worker)
            else:
                exchange.leave_out(worker, "it came back and has its trial requests", for_now=True)
        return kept or workers

    @hookimpl
    def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
        if self._watch is not None:
            self._watch.learn_all(exchange)

    @hookimpl
    def metrics(self) -> str:
        counts = self._watch.counts if self._watch is not None else {}
        return "".join(
            f"# TYPE router_health_{name}_total counter\nrouter_health_{name}_total {counts.get(name, 0)}\n"
            for name in COUNTS
        )
