"""Calls by which a coordinator tells the router something of many workers at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from router_core.bodies import is_text
from router_core.errors import Reject
from router_core.types import Worker
from router_core.workers import WorkerTable

T = TypeVar("T")


def update_workers(
    body: Any, workers: WorkerTable, check: Callable[[Mapping[str, Any]], T], apply: Callable[[Worker, T], None]
) -> tuple[int, dict[str, Any]]:
    """Takes a JSON body ``[{"worker_id", "dp_rank"?, ...}]``, such an object, or ``{"workers": [...]}``.

    ``worker_id`` is an id or a URL; without ``dp_rank`` it means every rank of that server. ``check`` gets each object
    and raises Reject for a wrong one: then nothing is applied. A worker that is not registered fails alone. Returns
    status (200, or 207 where some failed) and body of the answer.
    """
    checked = [_checked(entry, index, check) for index, entry in enumerate(_entries(body))]
    results: dict[str, Any] = {}
    failed = []
    for name, dp_rank, value in checked:
        found = workers.find(name, dp_rank)
        for worker in found:
            apply(worker, value)
            results[worker.id] = {"status": "success", "url": worker.url}
        if not found:
            rank = "" if dp_rank is None else f" with dp_rank {dp_rank}"
            failed.append({"worker_id": name, "status": 404, "message": f"there is no worker {name!r}{rank}"})
    told = {"results": results, "failed": failed, "total": len(results) + len(failed), "succeeded": len(results)}
    return 207 if failed else 200, told


def _entries(body: Any) -> list[Any]:
    if isinstance(body, dict):
        body = body.get("workers", [body])
    if not isinstance(body, list):
        raise Reject(400, "malformed_body", "the body must be a list of objects with a worker_id", "workers")
    return body


def _checked(entry: Any, index: int, check: Callable[[Mapping[str, Any]], T]) -> tuple[str, int | None, T]:
    if not isinstance(entry, dict):
        raise Reject(400, "malformed_body", f"entry {index} is {entry!r}, not an object with a worker_id", "workers")
    name = entry.get("worker_id") or entry.get("url")
    if not name or not is_text(name):
        raise Reject(400, "bad_value", f"entry {index}: worker_id must be a worker's id or URL", "worker_id")
    dp_rank = entry.get("dp_rank")
    if dp_rank is not None and (isinstance(dp_rank, bool) or not isinstance(dp_rank, int) or dp_rank < 0):
        raise Reject(400, "bad_value", f"entry {index}: dp_rank must be a number from 0 up", "dp_rank")
    try:
        return name, dp_rank, check(entry)
    except Reject as error:
        raise Reject(error.status, error.code, f"entry {index}: {error.message}", error.param) from None
