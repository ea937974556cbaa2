"""Takes failing workers out and brings them back, by probes and by what traffic shows."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from router_core import Exchange, Outcome, PluginSettings, Router, Worker, WorkerState, hookimpl
from router_health.probe import Prober
from router_health.record import Limits
from router_health.watch import Watch

COUNTS = ("probes", "failed_probes", "ejections", "returns", "kept_in")


class Health:
    """Quarantines a worker after consecutive failures, at once when it refuses connections; probes bring it back."""

    requires_api = ">=1,<2"
    several_processes = True

    class Settings(PluginSettings):
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

    def __init__(self, settings: Settings) -> None:
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
