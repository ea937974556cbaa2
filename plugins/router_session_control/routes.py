"""``/control/...``: which sessions there are, hang some, let them go on."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from router_core import Reject, Router, Worker, read_json
from router_session_control.control import Record, SessionController
from router_session_control.sessions import STATUSES

MAX_LISTED = 10_000
DEFAULT_LISTED = 1000


class SessionRoutes:
    """Needs `attach` before the first request."""

    def __init__(self, *, hang_ttl_s: float, max_hang_ttl_s: float) -> None:
        self._hang_ttl_s, self._max_hang_ttl_s = hang_ttl_s, max_hang_ttl_s
        self._router: Router
        self._control: SessionController
        self._tell_all: Callable[[Any], Awaitable[list[Any]]]

    def attach(
        self, router: Router, control: SessionController, tell_all: Callable[[Any], Awaitable[list[Any]]]
    ) -> None:
        self._router, self._control, self._tell_all = router, control, tell_all

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/control/sessions", self.list_sessions, methods=["GET"]),
            Route("/control/hang", self.hang, methods=["POST"]),
            Route("/control/continue", self.resume, methods=["POST"]),
        ]

    async def list_sessions(self, request: Request) -> Response:
        """``?status=generate|env|hung&limit=N``, those with the most tokens first."""
        status = request.query_params.get("status")
        if status is not None and status not in STATUSES:
            raise Reject(400, "bad_value", f"status is one of {', '.join(STATUSES)}, not {status[:64]!r}", "status")
        limit = _count(request.query_params.get("limit"))
        told = await self._tell_all(("list", status, limit))
        found = sorted((each for part, _ in told for each in part), key=lambda each: -each["total_tokens"])
        return JSONResponse({"sessions": found[:limit], "total": sum(total for _, total in told)})

    async def hang(self, request: Request) -> Response:
        """``{"session_ids": [...], "ttl_s"?}``: each waits from its next turn on."""
        body = await _object(request, ("session_id", "session_ids", "ttl_s"))
        ttl_s = body.get("ttl_s", self._hang_ttl_s)
        if (
            isinstance(ttl_s, bool)
            or not isinstance(ttl_s, int | float)
            or not (math.isfinite(ttl_s) and 0 < ttl_s <= self._max_hang_ttl_s)
        ):
            limit = f"{self._max_hang_ttl_s:g} (plugins.session_control.max_hang_ttl_s)"
            raise Reject(400, "bad_value", f"ttl_s must be a number of seconds above 0, at most {limit}", "ttl_s")
        ids = await self._named(body)
        told = await self._tell_all(("hang", ids, ttl_s))
        return JSONResponse({"hung": _in_order(ids, [part for part, _ in told])})

    async def resume(self, request: Request) -> Response:
        """``{"session_ids": [...], "worker_id"?}``: each goes on, its next turn at that worker if one is named."""
        body = await _object(request, ("session_id", "session_ids", "worker_id"))
        ids, worker = await self._named(body), self._worker(body.get("worker_id"))
        told = await self._tell_all(("continue", ids, None if worker is None else worker.id))
        continued = _in_order(ids, [part for part, _ in told])
        return JSONResponse({"continued": continued, "had_hung": sum(hung for _, hung in told)})

    def hear(self, what: str, *given: Any) -> Any:
        """This process's part: of the sessions that it owns."""
        now = self._router.clock.now()
        if what == "list":
            status, limit = given
            found = [record for record in self._control.sessions if status in (None, record.status)]
            found.sort(key=lambda record: -record.total_tokens)
            return [_described(record, now) for record in found[:limit]], len(found)
        records = [record for each in given[0] if (record := self._control.known(each)) is not None]
        hung = 0
        if what == "hang":
            self._control.hang(records, given[1])
        elif what == "continue":
            hung = self._control.resume(records, None if given[1] is None else self._worker(given[1]))
        return {record.id: _described(record, now) for record in records}, hung

    async def _named(self, body: dict[str, Any]) -> list[str]:
        """The sessions that a call names; some process knows each. Raises Reject (400, 404)."""
        ids = body.get("session_ids", [])
        if "session_id" in body:
            ids = [body["session_id"], *(ids if isinstance(ids, list) else [ids])]
        if not isinstance(ids, list) or not ids or not all(isinstance(each, str) for each in ids):
            raise Reject(400, "bad_value", 'name the sessions: {"session_ids": ["..."]}', "session_ids")
        ids = list(dict.fromkeys(ids))
        known = {each for part, _ in await self._tell_all(("known", ids)) for each in part}
        for each in ids:
            if each not in known:
                self._control.find(each)  # says so
        return ids

    def _worker(self, name: object) -> Worker | None:
        if name is None:
            return None
        found = self._router.workers.find(name) if isinstance(name, str) else []
        if not found:
            raise Reject(404, "unknown_worker", f"there is no worker {name!r}", "worker_id")
        return found[0]


def _described(record: Record, now: float) -> dict[str, Any]:
    return {
        "session_id": record.id,
        "status": record.status,
        "is_hung": record.is_hung,
        "total_tokens": record.total_tokens,
        "completion_tokens": record.completion_tokens,
        "turns": record.turns,
        "inflight": len(record.running),
        "waiting": len(record.waiting),
        "worker": record.worker.url if record.worker is not None else None,
        "idle_s": round(now - record.seen_at, 3),
        "hung_s": None if record.hung_at is None else round(now - record.hung_at, 3),
        "ends_in_s": None if record.hung_until is None else round(record.hung_until - now, 3),
    }


def _in_order(ids: Sequence[str], parts: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What the processes that own these sessions say of each."""
    return [part[each] for each in ids for part in parts if each in part]


async def _object(request: Request, known: tuple[str, ...]) -> dict[str, Any]:
    body = await read_json(request)
    if not isinstance(body, dict):
        raise Reject(400, "malformed_body", 'send a JSON object: {"session_ids": ["..."]}')
    for key in body:
        if key not in known:
            raise Reject(400, "unknown_key", f"there is no {key!r} here; known: {', '.join(known)}", key)
    return body


def _count(text: str | None) -> int:
    if text is None:
        return DEFAULT_LISTED
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) > MAX_LISTED:
        raise Reject(400, "bad_value", f"?limit= must be a number from 0 to {MAX_LISTED}, not {text[:64]!r}", "limit")
    return int(text)
