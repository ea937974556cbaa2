"""The router's own routes: workers in both dialects, sessions, and whether it lives."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from router_core.access import DATA_ADDRESS
from router_core.bodies import checked_number, checked_version, is_text, read_json, read_object
from router_core.errors import Reject
from router_core.outside import OutsideHooks
from router_core.plans import Plans
from router_core.sessions import CORE_KEYS, SessionTable
from router_core.settings import RouterSettings
from router_core.tasks import Tasks
from router_core.types import Session, Worker, WorkerState
from router_core.urls import rank_urls
from router_core.workers import WorkerTable

log = logging.getLogger("router_core")

MAX_DP_SIZE = 1024
WORKER_FIELDS = (
    "url",
    "worker_url",
    "worker_type",
    "api_key",
    "weight_version",
    "pending_weight_version",
    "priority",
    "dp_size",
    "labels",
)
"""What the router reads of a worker's description."""
CLAIMED = (
    "add_worker",
    "remove_worker",
    "list_workers",
    "workers",
    "sessions",
    "health",
    "liveness",
    "readiness",
    "plugins",
    "admin",
)
"""First path segments that the core takes."""


class WorkerRoutes:
    """``/add_worker`` and its kin, and the ``/workers`` family."""

    def __init__(self, workers: WorkerTable, tasks: Tasks, settings: RouterSettings) -> None:
        self._workers = workers
        self._tasks = tasks
        self._settings = settings

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/add_worker", self.add_worker, methods=["POST"]),
            Route("/remove_worker", self.remove_worker, methods=["POST"]),
            Route("/list_workers", self.list_workers, methods=["GET"]),
            Route("/workers", self.list, methods=["GET"]),
            Route("/workers", self.create, methods=["POST"]),
            Route("/workers", self.replace, methods=["PUT"]),
            Route("/workers/{name:path}", self.show, methods=["GET"]),
            Route("/workers/{name:path}", self.change, methods=["PATCH"]),
            Route("/workers/{name:path}", self.delete, methods=["DELETE"]),
        ]

    # ---------------------------------------------------------------------------------------------- SGLang's dialect
    async def add_worker(self, request: Request) -> Response:
        self._workers.add(await self._url_of(request))
        loads = {worker.url: worker.inflight for worker in self._workers}
        return JSONResponse({"status": "success", "worker_urls": loads})

    async def remove_worker(self, request: Request) -> Response:
        for worker in self._require(await self._url_of(request)):
            self._workers.remove(worker)
        return JSONResponse({"status": "success"})

    async def list_workers(self, request: Request) -> Response:
        return JSONResponse({"urls": [worker.url for worker in self._workers]})

    @staticmethod
    async def _url_of(request: Request) -> str:
        url: Any = request.query_params.get("url") or request.query_params.get("worker_url")
        if url is None:
            body = await read_object(request)
            url = body.get("url") or body.get("worker_url")
        if not url or not isinstance(url, str):
            raise Reject(400, "missing_url", "give the worker's URL as ?url= or in a JSON body", "url")
        return url

    # ---------------------------------------------------------------------------------------------- the /workers family
    async def list(self, request: Request) -> Response:
        workers = [describe_worker(worker) for worker in self._workers]
        return JSONResponse({"workers": workers, "total": len(workers)})

    async def create(self, request: Request) -> Response:
        body = await read_object(request)
        fields = _checked_fields(body)
        workers = self._register(fields)
        name = workers[0].id if len(workers) == 1 else workers[0].base_id
        location = f"/workers/{name}"
        told: dict[str, Any] = {"status": "accepted", "worker_id": name, "url": fields["url"], "location": location}
        if len(workers) > 1:
            told["ranks"] = {worker.url: worker.id for worker in workers}
        if ignored := [key for key in body if key not in WORKER_FIELDS and is_text(key)]:
            told["ignored"] = ignored
            log.info("worker %s: fields that mean nothing here were ignored: %.200r", workers[0].base_url, ignored)
        return JSONResponse(told, 202, {"location": location})

    async def replace(self, request: Request) -> Response:
        body = await read_json(request)
        if isinstance(body, dict):
            body = body.get("workers")
        if not isinstance(body, list):
            raise Reject(
                400, "malformed_body", "the body must be a list of workers: URLs or objects with a url", "workers"
            )
        wanted: list[dict[str, Any]] = []
        for item in body:
            wanted += _per_rank(_checked_fields({"url": item} if isinstance(item, str) else item))
        self._workers.check_urls([fields["url"] for fields in wanted])  # all or nothing
        stays = (WorkerState.READY, WorkerState.STARTING)
        before = {worker: worker.state in stays for worker in self._workers}
        kept: list[Worker] = []
        added: list[str] = []
        for fields in wanted:
            known = self._workers.get(fields["url"])
            if known is not None and before.get(known):
                self._workers.update(known, **{k: v for k, v in fields.items() if k != "url"})
                kept.append(known)
            else:
                worker = self._workers.add(**fields)
                kept.append(worker)
                added.append(worker.url)
        leaving = [worker for worker in before if worker not in kept]
        for worker in leaving:
            self._drain_beside(worker)
        return JSONResponse(
            {
                "added": added,
                "kept": [worker.url for worker in kept if worker.url not in added],
                "drained": [worker.url for worker in leaving],
            }
        )

    async def show(self, request: Request) -> Response:
        return _told(self._require(_name(request)))

    async def change(self, request: Request) -> Response:
        workers = self._require(_name(request))
        fields = _checked_fields({"url": workers[0].url, **await read_object(request)})
        if "dp_size" in fields:
            raise Reject(400, "bad_value", "dp_size cannot change: register the server again by POST", "dp_size")
        del fields["url"]
        for worker in workers:
            self._workers.update(worker, **fields)
        return _told(workers)

    async def delete(self, request: Request) -> Response:
        workers = self._require(_name(request))
        first = workers[0]
        told = {"status": "accepted", "worker_id": first.id, "url": first.url}
        if len(workers) > 1:
            told.update(worker_id=first.base_id, url=first.base_url)
        if _flag(request, "wait", default=False):
            timeout_s = self._settings.drain_timeout_s
            drained = await asyncio.gather(*(self._workers.drain(worker, timeout_s) for worker in workers))
            status = "removed" if all(worker.is_gone for worker in workers) else "kept"  # registered again meanwhile
            return JSONResponse({**told, "status": status, "drained": all(drained)})
        for worker in workers:
            self._drain_beside(worker)
        return JSONResponse(told, 202)

    def _drain_beside(self, worker: Worker) -> None:
        self._workers.start_drain(worker)
        if worker.own_inflight == 0:
            self._workers.remove(worker)
        else:
            work = self._workers.drain(worker, self._settings.drain_timeout_s)
            self._tasks.spawn(work, name=f"drain {worker.url}")

    def _register(self, fields: dict[str, Any]) -> Sequence[Worker]:
        return self._workers.add_ranks(**fields) if "dp_size" in fields else [self._workers.add(**fields)]

    def _require(self, name: str) -> Sequence[Worker]:
        """The worker of that name, or all ranks of the server."""
        workers = self._workers.find(name)
        if not workers:
            raise Reject(404, "unknown_worker", f"there is no worker {name!r}", "url")
        return workers


def _told(workers: Sequence[Worker]) -> Response:
    if len(workers) == 1:
        return JSONResponse(describe_worker(workers[0]))
    first, told = workers[0], [describe_worker(worker) for worker in workers]
    return JSONResponse({"id": first.base_id, "url": first.base_url, "dp_size": first.dp_size, "ranks": told})


def describe_worker(worker: Worker) -> dict[str, Any]:
    """A worker as the routes show it."""
    return {
        "id": worker.id,
        "url": worker.url,
        "worker_type": worker.worker_type,
        "is_healthy": worker.is_ready,
        "status": str(worker.state),
        "reason": worker.reason,
        "load": worker.inflight,
        "weight_version": worker.weight_version,
        "pending_weight_version": worker.pending_weight_version,
        "priority": worker.priority,
        "labels": worker.labels,
        "dp_rank": worker.dp_rank,
        "dp_size": worker.dp_size,
        "base_id": worker.base_id,
        "generation": worker.generation,
    }


def _name(request: Request) -> str:
    """What follows ``/workers/``, unquoted once (the path came percent-encoded)."""
    return str(request.path_params["name"])


def _checked_fields(body: object) -> dict[str, Any]:
    """The fields of a worker that the router keeps. Raises Reject (400) naming the wrong one; unknown ones pass."""
    if not isinstance(body, Mapping):
        raise Reject(400, "malformed_body", f"a worker is an object with a url, not {body!r}", "workers")
    fields: dict[str, Any] = {}
    url = body.get("url") or body.get("worker_url")
    if not isinstance(url, str) or not url:
        raise Reject(400, "missing_url", 'a worker needs its URL: {"url": "http://host:port"}', "url")
    fields["url"] = url
    for name in ("worker_type", "api_key"):
        if (value := body.get(name)) is not None:
            if not isinstance(value, str) or not re.fullmatch(r"[\x21-\x7e]{1,4096}", value):
                raise Reject(400, "bad_value", f"{name} must be a text of printable ASCII", name)
            fields[name] = value
    for name in ("weight_version", "pending_weight_version"):
        if (version := body.get(name)) is not None:
            fields[name] = checked_version(version, name)
    if (priority := body.get("priority")) is not None:
        fields["priority"] = checked_number(priority, "priority")
    if (dp_size := body.get("dp_size")) is not None:
        if isinstance(dp_size, bool) or not isinstance(dp_size, int) or not 1 <= dp_size <= MAX_DP_SIZE:
            raise Reject(400, "bad_value", f"dp_size must be a number from 1 to {MAX_DP_SIZE}", "dp_size")
        fields["dp_size"] = dp_size
    if (labels := body.get("labels")) is not None:
        if not isinstance(labels, dict) or not all(is_text(key) and is_text(value) for key, value in labels.items()):
            raise Reject(400, "bad_value", "labels must be an object of texts", "labels")
        fields["labels"] = labels
    return fields


def _per_rank(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of each rank of a server that was given with its ``dp_size``."""
    if "dp_size" not in fields:
        return [fields]
    try:
        return [{**fields, "url": url} for url in rank_urls(fields["url"], fields["dp_size"])]
    except ValueError as error:
        raise Reject(400, "bad_worker_url", str(error), "url") from None


def _flag(request: Request, name: str, *, default: bool) -> bool:
    text = request.query_params.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false", "1", "0"):
        raise Reject(400, "bad_value", f"?{name}= must be true or false, not {text!r}", name)
    return text.lower() in ("true", "1")


class SessionRoutes:
    """``/sessions``: opening, looking at and closing; turns are the proxy's."""

    def __init__(self, sessions: SessionTable, plans: Plans, outside: OutsideHooks, settings: RouterSettings) -> None:
        self._sessions = sessions
        self._plans = plans
        self._outside = outside
        self._settings = settings

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/sessions", self.open, methods=["POST"]),
            Route("/sessions", self.list, methods=["GET"]),
            Route("/sessions/{session_id}", self.show, methods=["GET"]),
            Route("/sessions/{session_id}", self.close, methods=["DELETE"]),
        ]

    async def open(self, request: Request) -> Response:
        session = await self.open_session(await read_object(request))
        base_url = f"{request.url.scheme}://{_turn_address(request)}/sessions/{session.id}/v1"
        return JSONResponse({"session_id": session.id, "base_url": base_url})

    async def open_session(self, body: dict[str, Any]) -> Session:
        """Opens a session from the body of ``POST /sessions``. Raises Reject, and what the plugins' hooks raise."""
        session = self._sessions.prepare(body)
        if session.profile is not None:
            self._plans.check_profile(session.profile, "profile")
        plan = self._plans.timed(self._plans.of(session.profile, None))
        try:
            taken = await plan.session_opened(session, body)
            for key in body:
                if key not in CORE_KEYS and key not in taken:
                    raise Reject(400, "unknown_key", f"neither the router nor a plugin takes {key!r}", key)
            self._sessions.open(session)
        except BaseException:
            self._outside.session_closed(session, "refused")
            raise
        return session

    async def list(self, request: Request) -> Response:
        told = [_brief(session) for session in self._sessions]
        return JSONResponse({"sessions": told, "total": len(told)})

    async def show(self, request: Request) -> Response:
        session = self._sessions.require(request.path_params["session_id"])
        plan = self._plans.timed(self._plans.of(session.profile, None))
        told = {**plan.describe_session(session), **_brief(session)}
        return Response(orjson.dumps(told), media_type="application/json")  # plugins may tell a lot

    async def close(self, request: Request) -> Response:
        session = self._sessions.require(request.path_params["session_id"])
        waits = _flag(request, "wait", default=True)
        cut = await self._sessions.close(session, timeout_s=self._settings.session_close_timeout_s if waits else 0.0)
        return Response(status_code=204, headers={"x-router-cancelled-turns": str(cut)} if cut else None)


def _turn_address(request: Request) -> str:
    """Host and port that turns are sent to: where this request came to, if that is not another address."""
    address = request.scope.get(DATA_ADDRESS)
    if address is None:
        return request.headers.get("host", "")
    host, port = address
    if host in ("0.0.0.0", "::"):  # everywhere: then also where this request came to
        host = request.url.hostname or host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _brief(session: Session) -> dict[str, Any]:
    return {
        "session_id": session.id,
        "profile": session.profile,
        "inflight": session.inflight,
        "closing": session.closing,
    }


class HealthRoutes:
    """Whether the process lives, and whether a request would find a worker and all plugins warm."""

    def __init__(self, workers: WorkerTable, warming: Mapping[str, str]) -> None:
        self._workers = workers
        self._warming = warming

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/health", self.liveness, methods=["GET"]),
            Route("/liveness", self.liveness, methods=["GET"]),
            Route("/readiness", self.readiness, methods=["GET"]),
        ]

    async def liveness(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "workers": len(self._workers), "ready": len(self._workers.ready())})

    async def readiness(self, request: Request) -> Response:
        if self._warming:
            told = "; ".join(f"{name}: {what}" for name, what in self._warming.items())
            raise Reject(503, "warming", told, retry_after_s=1)
        if not self._workers.ready():
            raise Reject(503, "no_worker", "no worker is ready", retry_after_s=1)
        return JSONResponse({"status": "ready", "ready": len(self._workers.ready())})
