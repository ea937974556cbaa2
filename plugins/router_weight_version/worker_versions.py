"""What is known of each worker's version, and when that must be confirmed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from router_core import Attempt, ControlAnswer, Router, StateKey, Worker, WorkerState
from router_weight_version.version import parse_version

log = logging.getLogger(__name__)

GENERATION = StateKey[int]("generation whose version was looked at")


class WorkerVersions:
    """Asks workers for their versions, learns them from answers, and says whose version is not confirmed."""

    def __init__(
        self,
        router: Router,
        tell_all: Callable[[Any], Awaitable[list[Any]]],
        *,
        confirm_recovered: bool,
        path: str,
        interval_s: float,
        timeout_s: float,
    ) -> None:
        self._router, self._tell_all = router, tell_all
        self._confirm_recovered = confirm_recovered
        self._path = path
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._unconfirmed: dict[Worker, float] = {}
        """Worker -> when its version had been stated last before it came back."""
        self._asking: set[Worker] = set()

    @property
    def is_any_unconfirmed(self) -> bool:
        return bool(self._unconfirmed)

    def is_confirmed(self, worker: Worker) -> bool:
        """Whether the worker's version was stated since it came back."""
        stated_at = self._unconfirmed.get(worker)
        if stated_at is None:
            return True
        if worker.weight_version_at == stated_at:
            return False
        del self._unconfirmed[worker]
        return True

    def see(self, worker: Worker, old: WorkerState | None, new: WorkerState) -> None:
        """A worker was registered, again or for the first time, changed its state, or is gone."""
        if new is WorkerState.REMOVED:
            self._unconfirmed.pop(worker, None)
            return
        known = worker.state_of.get(GENERATION, worker.generation)
        worker.state_of[GENERATION] = worker.generation
        if known != worker.generation:
            self._unconfirmed.pop(worker, None)
            came_back = worker.weight_version_at == 0.0
        else:
            came_back = old is WorkerState.QUARANTINED and new in (WorkerState.STARTING, WorkerState.READY)
        if came_back and self._confirm_recovered and parse_version(worker.weight_version) is not None:
            self._unconfirmed[worker] = worker.weight_version_at
        self.ask_soon(worker)

    # --------------------------------------------------------------------------------------------------------- stating
    def state(self, worker: Worker, version: str | None, pending: str | None) -> None:
        """The coordinator says what a worker has, or will have."""
        fields = {"weight_version": version, "pending_weight_version": pending}
        self._router.workers.update(worker, **{name: value for name, value in fields.items() if value is not None})
        self.ask_soon(worker)

    def learn(self, attempt: Attempt, version: str) -> None:
        """An answer of the worker says its version.

        Believed if it is news: newer than what is known, or older and the attempt began after that was stated (the
        worker was restarted, or the statement came too early: it is pending then). An unknown one is no news.
        """
        worker = attempt.worker
        if version == worker.weight_version or not self._router.workers.is_current(worker, attempt.generation):
            return
        self._believe(worker, version, attempt.started_at)
        if self._router.settings.processes > 1:  # once more here, too: then all have it in the same order
            self._router.spawn(self._share(worker.id, version, attempt.started_at), name="a version that was learnt")

    async def _share(self, worker_id: str, version: str, asked_at: float) -> None:
        await self._tell_all(("learn", worker_id, version, asked_at))

    def hear(self, worker_id: str, version: str, asked_at: float) -> None:
        """A process learnt it from an answer to a request that it sent at ``asked_at`` (clock time, s)."""
        worker = self._router.workers.get(worker_id)
        if worker is not None and version != worker.weight_version:
            self._believe(worker, version, asked_at)

    def _believe(self, worker: Worker, version: str, asked_at: float) -> None:
        number, known = parse_version(version), parse_version(worker.weight_version)
        if number is None:
            if worker.weight_version is None:
                self._router.workers.update(worker, weight_version=version)
        elif known is None or number > known:
            self._router.workers.update(worker, weight_version=version)
        elif number < known and asked_at > worker.weight_version_at:
            log.warning("%s answers with weight version %s, though it was said to have %s", worker.url, number, known)
            self._router.workers.update(worker, weight_version=version, pending_weight_version=str(known))
            self.ask_soon(worker)

    # ---------------------------------------------------------------------------------------------------------- asking
    def ask_soon(self, worker: Worker) -> None:
        """Asks the worker itself if something of its version is open, until it is not."""
        if self._path and worker not in self._asking and worker.is_ready and self._is_open(worker):
            self._asking.add(worker)
            self._router.spawn(self._ask(worker), name=f"weight version of {worker.url}")

    def _is_open(self, worker: Worker) -> bool:
        return self._must_know(worker) or worker.weight_version is None

    def _must_know(self, worker: Worker) -> bool:
        return not self.is_confirmed(worker) or worker.pending_weight_version is not None

    async def _ask(self, worker: Worker) -> None:
        try:
            while worker.is_ready and self._is_open(worker):
                generation, stated_at = worker.generation, worker.weight_version_at
                answer = await self._router.control.call(worker, "GET", self._path, timeout_s=self._timeout_s)
                if worker.generation != generation or worker.weight_version_at != stated_at:
                    continue  # what it said may be of yesterday
                self._take(worker, _version_in(answer))
                if not self._must_know(worker):
                    return
                await self._router.clock.sleep(self._interval_s)
        finally:
            self._asking.discard(worker)

    def _take(self, worker: Worker, version: str | None) -> None:
        """What the worker itself said: not taken where it is unknown and was known, or older than what is pending."""
        if version is None:
            return
        number, pending = parse_version(version), parse_version(worker.pending_weight_version)
        is_unconfirmed = not self.is_confirmed(worker)
        if number is None and (is_unconfirmed or worker.weight_version is not None):
            return
        if pending is not None and number is not None and number < pending:
            if is_unconfirmed:
                update = {"weight_version": version, "pending_weight_version": str(pending)}
                self._router.workers.update(worker, **update)
            return
        self._router.workers.update(worker, weight_version=version)


def _version_in(answer: ControlAnswer) -> str | None:
    body = answer.json() if answer.is_ok else None
    version = body.get("weight_version") if isinstance(body, dict) else None
    if isinstance(version, int) and not isinstance(version, bool):
        return str(version)
    return version if isinstance(version, str) and 0 < len(version) <= 128 and version.isprintable() else None
