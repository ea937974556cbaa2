"""The watch over all workers: probes each in a task of its own, and acts on what probes and requests show."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final

from router_core import Attempt, Exchange, Router, StateKey, Worker, WorkerState
from router_health.pool import Member, may_eject
from router_health.probe import ProbePath, Prober
from router_health.record import HealthRecord, Limits, Sign, Verdict
from router_health.traffic import sign_of

log = logging.getLogger("router_health")

RECORD: Final = StateKey[HealthRecord]("health record")
PATH = StateKey[ProbePath]("health probe path")
LEARNT: Final = StateKey[int]("attempts that health knows of")

ANSWERED: Final = Sign.ANSWERED
STARTING: Final = WorkerState.STARTING


class Watch:
    """Holds a record of each worker's present generation; all of it goes with the worker."""

    def __init__(
        self,
        router: Router,
        prober: Prober,
        limits: Limits,
        *,
        timeout_s: float,
        first_timeout_s: float,
        slow_start_s: float,
        trial_requests: int,
        max_out_share: float,
    ) -> None:
        self._router = router
        self._prober = prober
        self._limits = limits
        self._timeout_s, self._first_timeout_s = timeout_s, first_timeout_s
        self._slow_start_s = slow_start_s
        self._trial_requests = trial_requests
        self._max_out_share = max_out_share
        self._probing: dict[Worker, asyncio.Task[None]] = {}
        self._on_trial: set[Worker] = set()
        self.counts: Counter[str] = Counter()

    # --------------------------------------------------------------------------------------------- workers come and go
    def begin(self, worker: Worker) -> None:
        """Knows nothing of a worker that was registered just now, and asks it at once."""
        self.forget(worker)
        self._record(worker)
        self._probing[worker] = self._router.spawn(self._probe_forever(worker), name=f"health probes of {worker.url}")

    def forget(self, worker: Worker) -> None:
        self._on_trial.discard(worker)
        if (task := self._probing.pop(worker, None)) is not None:
            task.cancel()

    def is_new(self, worker: Worker) -> bool:
        """Whether it was registered since its record began."""
        record = worker.state_of.get(RECORD)
        return record is None or record.generation != worker.generation

    def _record(self, worker: Worker) -> HealthRecord:
        if self.is_new(worker):
            worker.state_of[RECORD] = HealthRecord(worker.generation, self._router.clock.now())
            worker.state_of[PATH] = ProbePath()
            self._on_trial.discard(worker)
        return worker.state_of[RECORD]

    # ---------------------------------------------------------------------------------------------------------- probes
    async def _probe_forever(self, worker: Worker) -> None:
        while not worker.is_gone:
            record = self._record(worker)
            await self._probe(worker, record)
            await self._router.clock.sleep(record.pause_s(worker.state, self._limits))

    async def _probe(self, worker: Worker, record: HealthRecord) -> None:
        since = record.probed_at
        timeout_s = self._timeout_s if record.has_answered else self._first_timeout_s
        sign, reason = await self._prober.ask(worker, worker.state_of[PATH], timeout_s)
        if worker.generation != record.generation:
            return
        self.counts["probes"] += 1
        self.counts["failed_probes"] += sign is not Sign.ANSWERED
        has_bytes = worker.last_byte_at > since
        verdict = record.after_probe(sign, worker.state, self._limits, self._router.clock.now(), has_bytes=has_bytes)
        self._act(worker, record, verdict, sign, reason)

    # --------------------------------------------------------------------------------------------------------- traffic
    def learn_all(self, exchange: Exchange) -> None:
        """Takes in how an exchange's attempts ended, each once."""
        attempts = exchange.attempts
        if len(attempts) == 1 and self._sees_service(attempts[0]):
            return  # as nearly always; to see that twice changes nothing
        known = exchange.state.get(LEARNT, 0)
        for attempt in attempts[known:]:
            if attempt.outcome is None:
                break
            known += 1
            self._learn(attempt)
        exchange.state[LEARNT] = known

    def _sees_service(self, attempt: Attempt) -> bool:
        """Takes in a good answer of a worker that is known to be up; False where there is more to be thought of."""
        worker = attempt.worker
        record = worker.state_of.get(RECORD)
        if (
            record is None
            or attempt.outcome is None
            or sign_of(attempt) is not ANSWERED
            or not attempt.generation == worker.generation == record.generation
            or worker.state is STARTING
        ):
            return False
        record.serve(attempt.ended_at or 0.0)
        return True

    def _learn(self, attempt: Attempt) -> None:
        """Of an older generation it says nothing."""
        sign, worker = sign_of(attempt), attempt.worker
        if sign is None or not self._router.workers.is_current(worker, attempt.generation):
            return
        record = self._record(worker)
        reason = f"a request was answered {attempt.status}" if attempt.error is None else str(attempt.error)
        verdict = record.after_request(sign, worker.state, self._limits, attempt.ended_at or 0.0)
        self._act(worker, record, verdict, sign, reason)

    @property
    def has_trials(self) -> bool:
        return bool(self._on_trial)

    def has_room(self, worker: Worker) -> bool:
        """Whether a new request may go to it; only a worker on trial ever says no."""
        if worker not in self._on_trial:
            return True
        record = self._record(worker)
        record.see_byte(worker.last_byte_at)
        if not record.on_trial:
            self._on_trial.discard(worker)
        return record.has_room(worker.inflight, self._trial_requests)

    # ---------------------------------------------------------------------------------------------------- out and back
    def _act(self, worker: Worker, record: HealthRecord, verdict: Verdict, sign: Sign, reason: str) -> None:
        if verdict is Verdict.BACK:
            self._restore(worker, record)
        elif verdict is Verdict.AWAIT_START:
            if sign is not Sign.SILENT or self._may_eject(worker):
                self._await_start(worker, record, reason)
        elif verdict is Verdict.OUT:
            if sign is Sign.REFUSED or self._may_eject(worker):
                self._eject(worker, record, sign, reason)
            else:
                self._keep_in(worker, record, reason)

    def _await_start(self, worker: Worker, record: HealthRecord, reason: str) -> None:
        if worker.is_ready:
            log.info("worker %s is starting: %s", worker.url, reason)
        elif not record.is_slow and self._router.clock.now() - record.created_at >= self._slow_start_s:
            record.is_slow = True
            log.warning("worker %s is still starting after %g s: %s", worker.url, self._slow_start_s, reason)
        self._router.workers.await_start(worker, record.generation, reason)

    def _eject(self, worker: Worker, record: HealthRecord, sign: Sign, reason: str) -> None:
        if worker.state is WorkerState.STARTING:
            reason = f"not up after {self._limits.starting_timeout_s:g} s: {reason}"
        elif sign is not Sign.REFUSED and record.failures > 1:
            reason = f"{record.failures} failures, the last: {reason}"
        if self._router.workers.quarantine(worker, record.generation, reason):
            record.leave(is_refusing=sign is Sign.REFUSED)
            self._on_trial.discard(worker)
            self.counts["ejections"] += 1
            log.warning("worker %s is out: %s", worker.url, reason)

    def _keep_in(self, worker: Worker, record: HealthRecord, reason: str) -> None:
        self.counts["kept_in"] += 1
        if record.failures <= self._limits.max_failures:
            log.warning("worker %s fails and stays in, too many others are out: %s", worker.url, reason)

    def _restore(self, worker: Worker, record: HealthRecord) -> None:
        was_out = worker.state is WorkerState.QUARANTINED
        record.come_back(self._router.clock.now(), worker.inflight, on_trial=was_out)
        if was_out:
            self._on_trial.add(worker)
        if self._router.workers.restore(worker, record.generation):
            self.counts["returns"] += was_out
            log.info("worker %s is %s", worker.url, "back" if was_out else "up")

    def _may_eject(self, worker: Worker) -> bool:
        if not worker.is_ready:
            return True
        others = [
            Member(other.is_ready, self._record(other).is_refusing)
            for other in self._router.workers
            if other is not worker and other.state in (WorkerState.READY, WorkerState.QUARANTINED)
        ]
        return may_eject(others, self._max_out_share)
