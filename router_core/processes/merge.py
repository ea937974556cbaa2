"""One answer of the router's own routes out of those of all processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from router_core.processes.messages import RouteAnswer
from router_core.types import WorkerState

Merge = Callable[[Sequence[RouteAnswer]], RouteAnswer]
"""Takes the answers by slot, none of which is an error."""

READY = str(WorkerState.READY)


def first_error(answers: Sequence[RouteAnswer]) -> RouteAnswer | None:
    return next((answer for answer in answers if answer.status >= 400), None)


def merge_sessions(answers: Sequence[RouteAnswer]) -> RouteAnswer:
    """``GET /sessions``: those of all."""
    sessions = [session for answer in answers for session in orjson.loads(answer.body)["sessions"]]
    return _with_body(answers[0], {"sessions": sessions, "total": len(sessions)})


def merge_workers(answers: Sequence[RouteAnswer]) -> RouteAnswer:
    """``GET /workers`` and ``/workers/{id}``: a worker is ready if it is for all of them, else as the first says."""
    bodies = [orjson.loads(answer.body) for answer in answers]
    if "workers" in bodies[0]:
        workers = _worst_of_each([worker for body in bodies for worker in body["workers"]])
        return _with_body(answers[0], {"workers": workers, "total": len(workers)})
    if "ranks" in bodies[0]:
        ranks = [rank for body in bodies for rank in body.get("ranks", [])]
        return _with_body(answers[0], {**bodies[0], "ranks": _worst_of_each(ranks)})
    return _with_body(answers[0], _worst_of_each(bodies)[0])


def _worst_of_each(workers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    merged: dict[str, dict[str, Any]] = {}
    for worker in workers:
        if merged.setdefault(worker["id"], worker)["status"] == READY:
            merged[worker["id"]] = worker
    return list(merged.values())


def merge_plugins(answers: Sequence[RouteAnswer]) -> RouteAnswer:
    """``GET /plugins``: failures, calls and seconds are summed; what is switched off in one process is."""
    bodies = [orjson.loads(answer.body) for answer in answers]
    first = bodies[0]
    for plugin in first["plugins"]:
        for body in bodies[1:]:
            other: dict[str, Any] = next((each for each in body["plugins"] if each["name"] == plugin["name"]), {})
            for name in ("errors", "hook_times"):
                if name in plugin:
                    plugin[name] = added(plugin[name], other.get(name, {}))
            if "switched_off" in plugin:
                plugin["switched_off"] = plugin["switched_off"] or other.get("switched_off", False)
    return _with_body(answers[0], first)


def added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two objects of numbers, or of such objects, summed."""
    total = dict(one)
    for name, value in other.items():
        if isinstance(value, dict):
            total[name] = added(total.get(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value
    return total


def _with_body(answer: RouteAnswer, body: Any) -> RouteAnswer:
    headers = [pair for pair in answer.headers if pair[0] != b"content-length"]
    said = orjson.dumps(body)
    return RouteAnswer(answer.status, [*headers, (b"content-length", b"%d" % len(said))], said)
