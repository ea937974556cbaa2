"""The watch over all workers: probes each in a task of its own, and acts on what probes and requests show."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from router_core import Router, StateKey, Worker, WorkerState
from router_health.pool import Member, may_eject
from router_health.probe import ProbePath, Prober
from router_health.record import HealthRecord, Limits, Sign, Verdict

log = logging.getLogger("router_health")

RECORD = StateKey[HealthRecord]("health record")
PATH = StateKey[ProbePath]("health probe path")


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
    def learn(self, worker: Worker, generation: int, sign: Sign, reason: str, ended_at: float) -> None:
        """Takes in how a request at a worker ended; of an older generation it says nothing."""
        if self._router.workers.is_current(worker, generation):
            record = self._record(worker)
            verdict = record.after_request(sign, worker.state, self._limits, ended_at)
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
