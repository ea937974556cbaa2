"""An inference worker as the router knows it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

from router_core.types.state import State


class WorkerState(StrEnum):
    """Whether a worker gets new requests: only a ready one does."""

    READY = "ready"
    STARTING = "starting"
    """Registered, and not seen to be up yet."""
    QUARANTINED = "quarantined"
    """Out for a reason; running requests go on; it comes back by itself or by registering again."""
    DRAINING = "draining"
    """Leaving: the running requests finish, then it is gone."""
    REMOVED = "removed"
    """Gone; a worker registered later on the same URL is another object."""


class Windows:
    """Spans of clock time (s), each held open by who gave it its name; one that nobody closes ends by itself."""

    __slots__ = ("_closed_at", "_open")

    def __init__(self) -> None:
        self._open: dict[str, float] = {}
        self._closed_at = -math.inf

    def open(self, name: str, until: float = math.inf) -> None:
        """Opens a window, or moves the end of one with this name."""
        self._open[name] = until

    def close(self, name: str, now: float) -> None:
        """Closes a window; one that is not open is no fault."""
        until = self._open.pop(name, None)
        if until is not None:
            self._closed_at = max(self._closed_at, min(until, now))

    def were_open(self, since: float) -> bool:
        """Whether one was open at any moment from ``since`` until now."""
        return self._closed_at >= since or any(until >= since for until in self._open.values())


class Worker:
    """One inference server (or one data-parallel rank of it). Compared by identity.

    ``generation`` rises each time the worker is registered; a result of an older generation touches nothing.
    """

    __slots__ = (
        "_own",
        "api_key",
        "base_id",
        "base_url",
        "cache_epoch",
        "dp_rank",
        "dp_size",
        "generation",
        "id",
        "key",
        "labels",
        "last_byte_at",
        "last_pick",
        "pending_weight_version",
        "priority",
        "reason",
        "registered_at",
        "state",
        "state_of",
        "stats",
        "stats_at",
        "url",
        "weight_version",
        "weight_version_at",
        "windows",
        "worker_type",
    )

    def __init__(
        self, *, id: str, base_id: str, url: str, key: str, base_url: str, dp_rank: int | None, generation: int
    ) -> None:
        self.id = id
        self.base_id = base_id
        """The id of its server: the same for all data-parallel ranks of one."""
        self.url = url
        """Exactly as it was registered first."""
        self.key = key
        """The identity: the normalised URL, with ``@rank`` where it names one."""
        self.base_url = base_url
        """Scheme, host, port and path prefix, without a trailing slash: a target is appended to it."""
        self.dp_rank = dp_rank
        self.dp_size = 1
        """How many data-parallel ranks its server was registered with."""
        self.generation = generation
        self.state = WorkerState.READY
        self.reason: str | None = None
        """Why the worker is not ready."""
        self._own = 0
        self.weight_version: str | None = None
        self.cache_epoch = 0
        """Rises whenever its prefix cache is known to be empty: registered again, new weights, flushed."""
        self.weight_version_at = 0.0
        """Clock time (s) at which the version was last stated, be it the same one; 0 while it was not since the worker
        was registered (again)."""
        self.pending_weight_version: str | None = None
        """The version it will have after a sync that is under way; None without one. A stated version ends it."""
        self.windows = Windows()
        """The pauses and weight updates during which it may abort what it runs, though nobody asked for that."""
        self.stats: dict[str, float] = {}
        """The newest statistics that were pushed for it by ``POST /workers/update_stats``."""
        self.stats_at = 0.0
        """Clock time (s) of that push."""
        self.worker_type = "regular"
        self.labels: dict[str, str] = {}
        self.priority: float | None = None
        self.api_key: str | None = None
        self.registered_at = 0.0
        self.last_byte_at = 0.0
        """Clock time (s) of the newest byte that came from it."""
        self.last_pick = 0
        """Serial number of its newest selection; ties are broken by the smallest."""
        self.state_of = State()
        """What plugins keep about this worker."""

    @property
    def inflight(self) -> int:
        """Attempts that were sent to it and whose last byte has not passed yet, of all processes together. Counted by
        the core alone."""
        return self._own

    @property
    def own_inflight(self) -> int:
        """Of `inflight` those of this process."""
        return self._own

    def count(self, change: int) -> None:
        """For the core: so many attempts more in flight, or fewer."""
        self._own += change

    @property
    def is_ready(self) -> bool:
        return self.state is WorkerState.READY

    @property
    def is_gone(self) -> bool:
        return self.state is WorkerState.REMOVED

    def __repr__(self) -> str:
        return f"<Worker {self.id} {self.url} {self.state} inflight={self.inflight}>"


Scores = Mapping[Worker, float]
"""Worker -> how good it is, in [0, 1]; a missing worker counts as 0."""
