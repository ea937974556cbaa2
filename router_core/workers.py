"""The table of workers. Their state and their inflight counts are changed here and nowhere else."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from router_core.clock import Clock
from router_core.deadline import within
from router_core.errors import Reject
from router_core.types import Attempt, Worker, WorkerState
from router_core.urls import AllowedWorkers, WorkerUrl, parse_worker_url, rank_urls

Changed = Callable[[Worker, WorkerState | None, WorkerState], None]


class WorkerTable:
    """All registered workers, in the order of registration.

    ``on_change`` is called after every change of a worker's state and when one is registered again; ``on_room`` after
    whatever may let a waiting request through.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        max_workers: int,
        on_change: Changed,
        on_room: Callable[[], None] = lambda: None,
        allowed: AllowedWorkers | None = None,
        make_worker: Callable[..., Worker] = Worker,
    ) -> None:
        self._clock = clock
        self._max_workers = max_workers
        self._on_change = on_change
        self._on_room = on_room
        self._allowed = allowed or AllowedWorkers()
        self._make_worker = make_worker
        self._workers: dict[str, Worker] = {}
        self._ready: tuple[Worker, ...] | None = None
        """What `ready` gives; None once a worker's state changed or one came or went."""
        self._generation = 0
        self._pick = 0
        self._idle: dict[Worker, asyncio.Event] = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._workers.values()))

    def __len__(self) -> int:
        return len(self._workers)

    def ready(self) -> tuple[Worker, ...]:
        """The workers that may get a new request."""
        if self._ready is None:
            self._ready = tuple(worker for worker in self._workers.values() if worker.state is WorkerState.READY)
        return self._ready

    def get(self, name: str) -> Worker | None:
        """A worker by its id or by any spelling of its URL."""
        for worker in self._workers.values():
            if name in (worker.id, worker.url):
                return worker
        try:
            return self._workers.get(parse_worker_url(name).key)
        except ValueError:
            return None

    def find(self, name: str, dp_rank: int | None = None) -> list[Worker]:
        """The workers of a name: the one that `get` finds, or all data-parallel ranks of the server that it names.

        With ``dp_rank`` the one of that rank.
        """
        worker = self.get(name)
        if worker is not None and dp_rank in (None, worker.dp_rank):
            return [worker]
        try:
            base_url = worker.base_url if worker is not None else parse_worker_url(name).base
        except ValueError:
            base_url = None
        ranks = [o for o in self._workers.values() if o.base_id == name or o.base_url == base_url]
        return ranks if dp_rank is None else [other for other in ranks if other.dp_rank == dp_rank]

    def is_current(self, worker: Worker, generation: int) -> bool:
        """Whether this is still the registered worker, and was not registered anew since ``generation``."""
        return self._workers.get(worker.key) is worker and worker.generation == generation

    # ------------------------------------------------------------------------------------------------- registering
    def check_urls(self, urls: Iterable[str]) -> None:
        """Raises Reject (400) for the first that cannot be registered."""
        for url in urls:
            self._checked(url)

    def _checked(self, url: str) -> WorkerUrl:
        parsed = _parse(url)
        try:
            self._allowed.check(parsed)
        except ValueError as error:
            raise Reject(400, "worker_not_allowed", str(error), "url") from None
        return parsed

    def add(self, url: str, **fields: object) -> Worker:
        """Registers a worker; a known one is revived, with a new generation, and takes the given fields.

        Raises Reject: 400 for a bad URL, 503 when the table is full.
        """
        parsed = self._checked(url)
        worker = self._workers.get(parsed.key)
        if worker is None and len(self._workers) >= self._max_workers:
            raise self._full()
        self._generation += 1
        if worker is None:
            worker = self._make_worker(
                id=_identity(parsed.key),
                base_id=_identity(parsed.base),
                url=url,
                key=parsed.key,
                base_url=parsed.base,
                dp_rank=parsed.dp_rank,
                generation=self._generation,
            )
            worker.registered_at = self._clock.now()
            self._workers[parsed.key] = worker
            self._ready = None
            self.update(worker, **fields)
            self._on_change(worker, None, worker.state)
        else:
            worker.generation = self._generation
            worker.cache_epoch += 1
            worker.weight_version_at = 0.0  # it may have been restarted
            worker.pending_weight_version = None
            self.update(worker, **fields)
            if (idle := self._idle.pop(worker, None)) is not None:
                idle.set()
            self._to(worker, WorkerState.READY, None, again=True)
        self._on_room()
        return worker

    def add_ranks(self, url: str, dp_size: int, **fields: object) -> list[Worker]:
        """Registers a server by its data-parallel ranks 0 to ``dp_size - 1``, each a worker ``url@rank``.

        What was registered of the same server before and is none of these is removed. Raises Reject as `add`.
        """
        try:
            urls = rank_urls(url, dp_size)
            base_url = parse_worker_url(url).base
        except ValueError as error:
            raise Reject(400, "bad_worker_url", str(error), "url") from None
        self.check_urls(urls)
        before = [worker for worker in self._workers.values() if worker.base_url == base_url]
        if len(self._workers) - len(before) + dp_size > self._max_workers:
            raise self._full()
        ranks = [None] if dp_size == 1 else list(range(dp_size))
        for worker in before:
            if worker.dp_rank not in ranks:
                self.remove(worker)
        return [self.add(rank_url, dp_size=dp_size, **fields) for rank_url in urls]

    def _full(self) -> Reject:
        return Reject(503, "too_many_workers", f"at most {self._max_workers} workers are kept (router.max_workers)")

    def update(self, worker: Worker, **fields: object) -> None:
        """Changes labels, version and the like; neither state nor generation."""
        _take(worker, fields)
        if fields.get("weight_version") is not None:
            worker.weight_version_at = self._clock.now()
            worker.pending_weight_version = fields.get("pending_weight_version")  # type: ignore[assignment]  # a text
        self._on_room()

    def set_stats(self, worker: Worker, stats: dict[str, float]) -> None:
        """Replaces what was known of a worker's load."""
        worker.stats, worker.stats_at = stats, self._clock.now()
        self._on_room()

    def forget_cache(self, worker: Worker) -> None:
        """The worker's prefix cache is empty now (flushed, memory released): plugins that keep an index of it see."""
        worker.cache_epoch += 1

    # ----------------------------------------------------------------------------------------------------- leaving
    def remove(self, worker: Worker) -> None:
        """Takes the worker off the list at once; its running requests go on."""
        if self._workers.get(worker.key) is worker:
            del self._workers[worker.key]
            self._ready = None
            self._to(worker, WorkerState.REMOVED, "removed")

    def start_drain(self, worker: Worker) -> None:
        """From now on no new request for it; it is gone once `drain` has waited for the running ones."""
        self._to(worker, WorkerState.DRAINING, "draining")

    async def drain(self, worker: Worker, timeout_s: float) -> bool:
        """No new request for it; returns when its running ones have ended (True) or after the deadline (False).

        The worker is gone then. Registering it again meanwhile ends the drain and keeps it.
        """
        self.start_drain(worker)
        generation = worker.generation
        idle = self._idle.setdefault(worker, asyncio.Event())
        if worker.own_inflight == 0:
            idle.set()
        with suppress(TimeoutError):
            await within(timeout_s, idle.wait())
        if self._idle.get(worker) is idle:
            del self._idle[worker]
        if self.is_current(worker, generation):
            self.remove(worker)
        return worker.own_inflight == 0

    # ------------------------------------------------------------------------------------------------- in and out
    def await_start(self, worker: Worker, generation: int, reason: str) -> bool:
        """A worker turned out not to be up yet: it gets no request until `restore`. False when it is out otherwise."""
        if not self.is_current(worker, generation) or worker.state not in (WorkerState.READY, WorkerState.STARTING):
            return False
        self._to(worker, WorkerState.STARTING, reason)
        return True

    def quarantine(self, worker: Worker, generation: int, reason: str) -> bool:
        """Takes a ready or starting worker out for a reason; False when that generation is over or it is out."""
        if not self.is_current(worker, generation) or worker.state not in (WorkerState.READY, WorkerState.STARTING):
            return False
        self._to(worker, WorkerState.QUARANTINED, reason)
        return True

    def restore(self, worker: Worker, generation: int) -> bool:
        """Brings a quarantined or starting worker back; False when that generation is over."""
        if not self.is_current(worker, generation) or worker.state not in (
            WorkerState.QUARANTINED,
            WorkerState.STARTING,
        ):
            return False
        self._to(worker, WorkerState.READY, None)
        return True

    def _to(self, worker: Worker, state: WorkerState, reason: str | None, *, again: bool = False) -> None:
        old, worker.state, worker.reason = worker.state, state, reason
        self._ready = None
        if old is not state or again:
            self._on_change(worker, old, state)
            self._on_room()

    # --------------------------------------------------------------------------------------------------- counting
    def count(self, attempt: Attempt) -> None:
        """An attempt was given to its worker: one more in flight."""
        self._pick += 1
        attempt.worker.count(1)
        attempt.worker.last_pick = self._pick

    def release(self, attempt: Attempt) -> None:
        """The attempt's last byte has passed, or it failed. The caller sees to it that this happens once."""
        worker = attempt.worker
        worker.count(-1)
        self._on_room()
        if worker.own_inflight == 0 and (idle := self._idle.get(worker)) is not None:
            idle.set()


_FIELDS = (
    "weight_version",
    "pending_weight_version",
    "worker_type",
    "labels",
    "priority",
    "api_key",
    "dp_size",
)


def _parse(url: str) -> WorkerUrl:
    try:
        return parse_worker_url(url)
    except ValueError as error:
        raise Reject(400, "bad_worker_url", str(error), "url") from None


def _identity(key: str) -> str:
    """A worker's id, the same on every router that knows the URL."""
    return "w-" + hashlib.sha256(key.encode()).hexdigest()[:12]


def _take(worker: Worker, fields: Mapping[str, object]) -> None:
    for name, value in fields.items():
        if name not in _FIELDS:
            raise TypeError(f"a worker has no field {name!r}")
        if name == "weight_version" and value not in (None, worker.weight_version):
            worker.cache_epoch += 1
        if value is not None:
            setattr(worker, name, value)
