"""Control verbs go to every worker; aborts go to the worker that has the rid, also when the client has gone."""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar, Final

from starlette.routing import BaseRoute

from router_core import (
    Answer,
    CallNext,
    Exchange,
    MalformedBody,
    Outcome,
    OutcomeKind,
    PluginSettings,
    Router,
    StateKey,
    Worker,
    hookimpl,
)
from router_engine_control.rids import RidTable
from router_engine_control.routes import ControlRoutes
from router_engine_control.settings import EngineControlSettings
from router_engine_control.verbs import is_batch, may_name_rid, read_rids

RIDS: Final = StateKey[list[str]]("rids")
KNOWS_NO_ABORT = StateKey[int]("generation of a worker without /abort_request")
WITH_RID: Final = frozenset((b"/generate", b"/v1/chat/completions", b"/v1/completions"))
CUT_SHORT: Final = frozenset((OutcomeKind.CLIENT_LEFT, OutcomeKind.REJECTED, OutcomeKind.TIMED_OUT, OutcomeKind.FAILED))
"""Endings of an exchange after which its worker may still be generating."""


class EngineControl:
    """Fans control verbs out, answers questions from any worker, and aborts by rid."""

    requires_api: ClassVar[str] = ">=1,<2"
    several_processes: ClassVar[bool] = True
    Settings: ClassVar[type[PluginSettings]] = EngineControlSettings

    def __init__(self, settings: EngineControlSettings) -> None:
        self._settings = settings
        self._rids: RidTable[Exchange] = RidTable(settings.max_rids)
        self._routes = ControlRoutes(
            self._rids,
            timeout_s=settings.timeout_s,
            out_timeout_s=settings.out_timeout_s,
            info_timeout_s=settings.info_timeout_s,
            metrics_timeout_s=settings.metrics_timeout_s,
            window_ttl_s=settings.window_ttl_s,
        )
        self._router: Router

    @hookimpl
    async def startup(self, router: Router) -> None:
        self._router = router
        self._routes.attach(router, lambda message: router.tell_all(self, message))

    @hookimpl
    async def told(self, message: Sequence[Any]) -> Any:
        what, *given = message
        match what:
            case "verb":
                return self._routes.hear(*given)
            case "known":
                return self._routes.knows(*given)
            case "abort":
                return await self._routes.abort_here(*given)
        return await self._routes.abort_all_here(*given)

    @hookimpl
    def routes(self) -> Sequence[BaseRoute]:
        return self._routes.routes()

    @hookimpl
    def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Awaitable[Answer]:
        request = exchange.request
        if request.path in WITH_RID and request.method in ("POST", "PUT"):
            settings: EngineControlSettings = exchange.settings(self)
            body = request.ready_body
            if body is None or settings.inject_rid or (len(body) <= settings.max_rid_body_bytes and may_name_rid(body)):
                return self._with_rids(exchange, settings, call_next)
        return call_next(exchange)

    @hookimpl
    def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
        rids = exchange.state.get(RIDS)
        if rids is None:
            return
        for rid in rids:
            self._rids.remove(rid, exchange)
        attempt = exchange.attempts[-1] if exchange.attempts else None
        if (
            outcome.kind in CUT_SHORT
            and attempt is not None
            and attempt.request_sent
            and exchange.settings(self).abort_on_leave
        ):
            exchange.spawn(self._abort(attempt.worker, rids), name=f"abort at {attempt.worker.url}")

    async def _with_rids(self, exchange: Exchange, settings: EngineControlSettings, call_next: CallNext) -> Answer:
        """The layer, with the rids of the request noted first."""
        rids = await self._find_rids(exchange, settings)
        if rids:
            exchange.state[RIDS] = rids
            for rid in rids:
                self._rids.add(rid, exchange)
        return await call_next(exchange)

    async def _find_rids(self, exchange: Exchange, settings: EngineControlSettings) -> list[str]:
        """The rids in the request's body; one is put in where the settings say so."""
        request = exchange.request
        injects = settings.inject_rid and request.path == b"/generate"
        if not injects and not self._is_read(exchange, settings.max_rid_body_bytes):
            return []
        if not injects:
            body = request.ready_body
            if not may_name_rid(await request.body() if body is None else body):
                return []
        try:
            call = await request.json()
        except MalformedBody:
            return []  # the worker says so
        if not isinstance(call, dict):
            return []
        rids = read_rids(call)
        if not rids and injects and call.get("rid") is None and not is_batch(call):
            rids = [uuid.uuid4().hex]
            request.set_key("rid", rids[0])
        return rids

    @staticmethod
    def _is_read(exchange: Exchange, max_bytes: int) -> bool:
        """Whether the body is there already, or announced as short enough to be waited for."""
        ready = exchange.request.ready_body
        length = len(ready) if ready is not None else exchange.request.source.length
        return length is not None and length <= max_bytes

    async def _abort(self, worker: Worker, rids: Sequence[str]) -> None:
        """Tells a worker to stop; its closed connection says the same, but not every version listens."""
        for rid in rids:
            if self._rids.get(rid) or worker.state_of.get(KNOWS_NO_ABORT) == worker.generation:
                continue  # the client is back with the same rid, or there is no such route
            answer = await self._router.control.call(
                worker,
                "POST",
                "/abort_request",
                timeout_s=self._settings.out_timeout_s,
                body=json.dumps({"rid": rid}).encode(),
                headers={"content-type": "application/json"},
            )
            if answer.status in (404, 405):
                worker.state_of[KNOWS_NO_ABORT] = worker.generation
