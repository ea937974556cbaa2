"""The workers as every process knows them, for one that takes the place of a lost one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from router_core.types import Worker, WorkerState
from router_core.workers import WorkerTable

FIELDS = ("weight_version", "pending_weight_version", "worker_type", "labels", "priority", "api_key", "dp_size")
KEPT = ("cache_epoch", "weight_version_at", "stats", "stats_at", "registered_at", "windows")
"""Attributes that `WorkerTable.update` does not set."""
LEFT_OUT = (WorkerState.DRAINING, WorkerState.REMOVED)


def take_snapshot(workers: WorkerTable) -> list[dict[str, Any]]:
    """Plain values, in the order of registration. Those that drain get nothing new and are left out."""
    return [_described(worker) for worker in workers if worker.state not in LEFT_OUT]


def _described(worker: Worker) -> dict[str, Any]:
    names = ("key", "url", "reason", *FIELDS, *KEPT)
    return {"state": str(worker.state), **{name: getattr(worker, name) for name in names}}


def adopt(workers: WorkerTable, snapshot: Sequence[Mapping[str, Any]]) -> None:
    """Makes the table of a process that has not started yet that of the snapshot."""
    wanted = {said["key"] for said in snapshot}
    for worker in workers:
        if worker.key not in wanted:
            workers.remove(worker)
    for said in snapshot:
        worker = workers.get(said["url"]) or workers.add(said["url"])
        workers.update(worker, **{name: said[name] for name in FIELDS if said[name] is not None})
        for name in KEPT:
            setattr(worker, name, said[name])
        if said["state"] == WorkerState.STARTING:
            workers.await_start(worker, worker.generation, said["reason"])
        elif said["state"] == WorkerState.QUARANTINED:
            workers.quarantine(worker, worker.generation, said["reason"])
