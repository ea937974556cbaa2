"""Takes failing workers out and brings them back, by probes and by what traffic shows."""

from __future__ import annotations

from pydantic import Field

from router_core import (
    Attempt,
    ControlAnswer,
    Exchange,
    OutcomeKind,
    PluginSettings,
    Router,
    StateKey,
    Worker,
    WorkerProtocolError,
    WorkerState,
    WorkerUnreachable,
    hookimpl,
)
from router_health.record import HealthRecord

RECORD = StateKey[HealthRecord]("health record")


class Health:
    """Quarantines a worker after consecutive failures, at once when it refuses connections; probes bring it back."""

    requires_api = ">=1,<2"

    class Settings(PluginSettings):
        interval_s: float = Field(default=2.0, gt=0)
        """Seconds between two probes of a worker."""
        timeout_s: float = Field(default=20.0, gt=0)
        """Seconds a probe may take (SGLang's ``/health`` generates a token)."""
        max_failures: int = Field(default=3, ge=1)
        """Consecutive failures after which a worker is out."""
        max_interval_s: float = Field(default=30.0, gt=0)
        """Longest pause in seconds between two probes of a worker that is out."""
        path: str = Field(default="/health", pattern=r"^/")
        """What a probe asks for; 2xx is healthy."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._router: Router | None = None

    @hookimpl
    async def startup(self, router: Router) -> None:
        self._router = router
        for worker in router.workers:
            self._watch(router, worker)

    @hookimpl
    def worker_changed(self, worker: Worker, old: WorkerState | None) -> None:
        if old is None and self._router is not None:
            self._watch(self._router, worker)

    @hookimpl
    def response_end(self, exchange: Exchange) -> None:
        for attempt in exchange.attempts:
            self._learn(attempt)

    # ------------------------------------------------------------------------------------------------------- traffic
    def _learn(self, attempt: Attempt) -> None:
        worker, error = attempt.worker, attempt.error
        record = self._record(worker)
        if self._router is None or attempt.generation != record.generation:
            return
        if isinstance(error, WorkerUnreachable) and error.refused:
            self._out(worker, record, str(error))
        elif attempt.outcome is not None and (
            attempt.outcome.kind is OutcomeKind.WORKER_LOST or isinstance(error, WorkerProtocolError)
        ):
            self._fail(worker, record, str(error))
        elif attempt.first_byte_at is not None:
            record.succeed()

    # -------------------------------------------------------------------------------------------------------- probes
    def _watch(self, router: Router, worker: Worker) -> None:
        worker.state_of[RECORD] = HealthRecord(worker.generation)
        router.spawn(self._probe_forever(router, worker), name=f"health probes of {worker.url}")

    async def _probe_forever(self, router: Router, worker: Worker) -> None:
        settings = self._settings
        while True:
            record = self._record(worker)
            is_out = worker.state is WorkerState.QUARANTINED
            await router.clock.sleep(
                record.pause_s(settings.interval_s, settings.max_interval_s) if is_out else settings.interval_s
            )
            if worker.is_gone:
                return
            generation, since = worker.generation, router.clock.now()
            answer = await router.control.call(worker, "GET", settings.path, timeout_s=settings.timeout_s)
            if worker.generation == generation:
                self._judge(worker, self._record(worker), answer, since)

    def _judge(self, worker: Worker, record: HealthRecord, answer: ControlAnswer, since: float) -> None:
        if answer.is_ok:
            record.succeed()
            if self._router is not None:
                self._router.workers.restore(worker, record.generation)
        elif worker.state is WorkerState.QUARANTINED:
            record.vain_probes += 1
        elif answer.refused:
            self._out(worker, record, f"{worker.base_url}: {answer.error}")
        elif worker.last_byte_at < since:
            self._fail(worker, record, answer.error or f"{self._settings.path} answered {answer.status}")

    def _record(self, worker: Worker) -> HealthRecord:
        record = worker.state_of.get(RECORD)
        if record is None:
            record = worker.state_of[RECORD] = HealthRecord(worker.generation)
        record.renew(worker.generation)
        return record

    def _fail(self, worker: Worker, record: HealthRecord, reason: str) -> None:
        if record.fail(self._settings.max_failures):
            self._out(worker, record, f"{record.failures} failures, the last: {reason}")

    def _out(self, worker: Worker, record: HealthRecord, reason: str) -> None:
        if self._router is not None:
            self._router.workers.quarantine(worker, record.generation, reason)
