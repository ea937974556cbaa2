"""``/routing/...``, and the versions that a coordinator states."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from router_core import Reject, Worker, read_json, update_workers
from router_weight_version.eligibility import Eligibility
from router_weight_version.everywhere import checked_versions
from router_weight_version.settings import WeightVersionSettings
from router_weight_version.version import parse_version

PREFIXES = ("/routing", "/routing_loop")
MAX_LISTED = 1000
TARGET_KEYS = ("worker_id", "worker_ids")


class VersionRoutes:
    """The routes of one plugin instance."""

    def __init__(
        self,
        eligibility: Eligibility,
        settings: WeightVersionSettings,
        tell_all: Callable[[Any], Awaitable[list[Any]]],
    ) -> None:
        self._eligibility = eligibility
        self._settings = settings
        self._tell_all = tell_all

    def routes(self) -> list[BaseRoute]:
        return [
            *(Route(f"{prefix}/pause", self.pause, methods=["POST"]) for prefix in (*PREFIXES, "/workers")),
            *(Route(f"{prefix}/resume", self.resume, methods=["POST"]) for prefix in (*PREFIXES, "/workers")),
            *(Route(f"{prefix}/status", self.status, methods=["GET"]) for prefix in PREFIXES),
            *(Route(f"{prefix}/drain", self.drain, methods=["POST"]) for prefix in PREFIXES),
            *(Route(f"{prefix}/filter", self.filter, methods=["GET"]) for prefix in PREFIXES),
            Route("/workers/update_weight_version", self.update, methods=["POST"]),
        ]

    # ---------------------------------------------------------------------------------------------------------- pausing
    async def pause(self, request: Request) -> Response:
        """``?wait=true&timeout=S&ttl=S&worker_id=...``, or the same keys in a JSON object."""
        settings = self._settings
        given = await _given(request, ("wait", "timeout", "ttl", *TARGET_KEYS))
        waits = _flag(given, "wait")
        timeout_s = _seconds(given, "timeout", settings.pause_wait_s, math.inf)
        ttl_s = _seconds(given, "ttl", settings.pause_ttl_s, settings.max_pause_ttl_s)
        workers = self._targets(given)
        until = self._eligibility.router.clock.now() + ttl_s
        ids = [worker.id for worker in workers]
        found = await self._tell_all(("pause", ids, until, timeout_s if waits else 0.0))
        left = sum(each["left"] for each in found)
        told = {
            "status": "paused",
            "epoch": found[0]["epoch"],
            "handed_over": left == 0,
            "on_the_way": left,
            "ttl_s": ttl_s,
            "workers": [worker.id for worker in workers] or "all",
            "held": sum(each["held"] for each in found),
            "inflight": sum(worker.inflight for worker in self._eligibility.router.workers),
        }
        return JSONResponse(told, 202 if waits and left else 200)

    async def resume(self, request: Request) -> Response:
        workers = self._targets(await _given(request, TARGET_KEYS))
        found = await self._tell_all(("resume", [worker.id for worker in workers]))
        told = {
            "status": "paused" if self._eligibility.dispatch.pauses.is_paused(None) else "running",
            "was_paused": any(each["was_paused"] for each in found),
            "epoch": self._eligibility.dispatch.pauses.epoch,
            "workers": [worker.id for worker in workers] or "all",
            "held": sum(each["held"] for each in found),
        }
        return JSONResponse(told)

    def _targets(self, given: Mapping[str, list[Any]]) -> list[Worker]:
        names = [*given.get("worker_id", ()), *given.get("worker_ids", ())]
        workers: dict[Worker, None] = {}
        for name in names:
            found = self._eligibility.router.workers.find(name) if isinstance(name, str) else []
            if not found:
                raise Reject(404, "unknown_worker", f"there is no worker {name!r}", "worker_id")
            workers.update(dict.fromkeys(found))
        return list(workers)

    # ---------------------------------------------------------------------------------------------------------- looking
    async def status(self, request: Request) -> Response:
        """What is paused, who waits (``?limit=`` of them are listed), and every worker's version."""
        router, dispatch = self._eligibility.router, self._eligibility.dispatch
        limit = _count(request, "limit", 100, MAX_LISTED)
        now, pauses = router.clock.now(), dispatch.pauses
        until, newest = pauses.until(None), self._eligibility.newest()
        found = await self._tell_all(("status", limit))
        queue = sorted((held for each in found for held in each["queue"]), key=lambda held: -held["held_s"])[:limit]
        by_kind = sum((Counter(each["by_kind"]) for each in found), Counter())
        total, oldest_s = sum(each["total"] for each in found), max(each["oldest_s"] for each in found)
        told = {
            "paused": until is not None,
            "ends_in_s": None if until is None else round(until - now, 3),
            "epoch": pauses.epoch,
            "newest_version": None if newest is None else str(newest),
            "inflight": sum(worker.inflight for worker in router.workers),
            "held": {"total": total, "by_kind": by_kind, "oldest_s": round(oldest_s, 3)},
            "queue": queue,
            "workers": [self._describe(worker, now) for worker in router.workers],
        }
        return JSONResponse(told)

    def _describe(self, worker: Worker, now: float) -> dict[str, Any]:
        until = self._eligibility.dispatch.pauses.until(worker)
        return {
            "worker_id": worker.id,
            "url": worker.url,
            "dp_rank": worker.dp_rank,
            "status": str(worker.state),
            "paused": until is not None,
            "ends_in_s": None if until is None else round(until - now, 3),
            "weight_version": worker.weight_version,
            "pending_weight_version": worker.pending_weight_version,
            "is_version_confirmed": self._eligibility.versions.is_confirmed(worker),
            "inflight": worker.inflight,
        }

    async def filter(self, request: Request) -> Response:
        """``?version_tag=N``: who may serve a request of that tag now, and why the others may not."""
        text = request.query_params.get("version_tag")
        tag = None if text is None else parse_version(text)
        if text is not None and tag is None:
            raise Reject(400, "bad_version_tag", f"?version_tag= must be a number, not {text[:64]!r}", "version_tag")
        eligibility, max_staleness = self._eligibility, self._settings.max_staleness
        fits, out = [], {}
        for worker in eligibility.router.workers:
            reason = f"{worker.state}: {worker.reason}" if worker.reason else str(worker.state)
            if worker.is_ready:
                found = eligibility.why_out(worker, tag, eligibility.newest(), max_staleness)
                reason = found[0] if found is not None else ""
            if reason:
                out[worker.url] = reason
            else:
                fits.append({"worker_id": worker.id, "url": worker.url, "weight_version": worker.weight_version})
        return JSONResponse({"version_tag": None if tag is None else str(tag), "workers": fits, "out": out})

    # --------------------------------------------------------------------------------------------------------- draining
    async def drain(self, request: Request) -> Response:
        """``?older_than=N``: held requests whose version tag, or session, is older end with 409 ``drained``."""
        given = await _given(request, ("older_than", "untagged"))
        texts = given.get("older_than", ())
        oldest = parse_version(str(texts[-1])) if texts else None
        if oldest is None:
            raise Reject(400, "bad_value", "older_than must be a weight version: a decimal number", "older_than")
        found = await self._tell_all(("drain", oldest, _flag(given, "untagged")))
        return JSONResponse({name: sum(each[name] for each in found) for name in ("drained", "held")})

    # ---------------------------------------------------------------------------------------------------------- stating
    async def update(self, request: Request) -> Response:
        """``[{"worker_id", "dp_rank"?, "weight_version"?, "pending_weight_version"?}]``; running requests go on."""
        body = await read_json(request)
        update_workers(body, self._eligibility.router.workers, checked_versions, lambda worker, stated: None)  # or none
        status, told = (await self._tell_all(("state", body)))[0]
        return JSONResponse(told, status)


# ------------------------------------------------------------------------------------------------------ what was given
async def _given(request: Request, known: Sequence[str]) -> dict[str, list[Any]]:
    """Query parameters and the keys of a JSON body, each with its values. Raises Reject (400) for an unknown one."""
    body = await read_json(request)
    if body is not None and not isinstance(body, dict):
        raise Reject(400, "malformed_body", f"the body must be a JSON object, not {type(body).__name__}")
    given: dict[str, list[Any]] = {}
    for key, value in [*request.query_params.multi_items(), *(body or {}).items()]:
        if key not in known:
            raise Reject(400, "unknown_key", f"there is no {key!r} here; known: {', '.join(known)}", key)
        given.setdefault(key, []).extend(value if isinstance(value, list) else [value])
    return given


def _flag(given: Mapping[str, list[Any]], name: str) -> bool:
    value = (given.get(name) or [False])[-1]
    text = value.lower() if isinstance(value, str) else value
    if text in (True, "true", "1"):
        return True
    if text in (False, "false", "0"):
        return False
    raise Reject(400, "bad_value", f"{name} must be true or false, not {value!r}", name)


def _seconds(given: Mapping[str, list[Any]], name: str, default: float, most: float) -> float:
    value = (given.get(name) or [default])[-1]
    try:
        seconds = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds <= most or math.isinf(seconds):
        bound = "" if math.isinf(most) else f", at most {most:g} (plugins.weight_version.max_pause_ttl_s)"
        raise Reject(400, "bad_value", f"{name} must be a number of seconds above 0{bound}, not {value!r}", name)
    return seconds


def _count(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) > most:
        raise Reject(400, "bad_value", f"?{name}= must be a number from 0 to {most}, not {text[:64]!r}", name)
    return int(text)
