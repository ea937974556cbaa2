"""Keeps the experts that a worker chose for each token: asked for, found in the passing answer, checked, served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, ClassVar

from starlette.routing import BaseRoute

from router_core import (
    ROUTED_EXPERTS,
    Answer,
    Attempt,
    CallNext,
    Exchange,
    MalformedBody,
    MemberStripper,
    PluginSettings,
    Request,
    RoutedExperts,
    Router,
    Session,
    StateKey,
    hookimpl,
)
from router_routed_experts.asking import GENERATE, TARGETS, edits, read_asked
from router_routed_experts.capture import Capture, Plan
from router_routed_experts.metrics_page import render
from router_routed_experts.passing import passing
from router_routed_experts.reading import AnswerReader, Part
from router_routed_experts.reasons import Reason, RowsError
from router_routed_experts.routes import ExpertRoutes
from router_routed_experts.rows import Verdict
from router_routed_experts.sessions import SessionRows
from router_routed_experts.settings import RoutedExpertsSettings
from router_routed_experts.sglext import SglextFilter
from router_routed_experts.store import RowStore

log = logging.getLogger(__name__)

PLAN = StateKey[Plan]("routed experts plan")

IN_LOOP_BYTES = 1 << 18
"""Answers up to this size are judged where they come; a larger one is judged in a thread."""


class RoutedExpertsPlugin:
    """Asks for routed experts, reads them from the bytes that pass, and keeps them whole or marked."""

    requires_api: ClassVar[str] = ">=1,<2"
    Settings: ClassVar[type[PluginSettings]] = RoutedExpertsSettings

    def __init__(self, settings: RoutedExpertsSettings) -> None:
        self._settings = settings
        self._router: Router
        self._store = RowStore(
            max_bytes=settings.max_bytes, ttl_s=settings.ttl_s, clock=lambda: self._router.clock.now()
        )
        self._sessions = SessionRows(self._store, max_sessions=settings.max_sessions)
        self._layout = settings.layout()
        self._capture = Capture(self._store, self._sessions, self._layout)

    # --------------------------------------------------------------------------------------------- outside a request
    @hookimpl
    async def startup(self, router: Router) -> None:
        self._router = router
        if self._layout is None:
            log.warning(
                "SGLang says no shape of routed experts: set plugins.routed_experts.model to the checkpoint's directory"
                " (or layers and top_k), else what SGLang workers send is incomplete (%s)",
                Reason.LAYOUT_UNKNOWN,
            )
        if self._settings.ttl_s is not None:
            router.spawn(self._expire_forever(self._settings.ttl_s), name="routed experts: idle rows")

    async def _expire_forever(self, ttl_s: float) -> None:
        while True:
            await self._router.clock.sleep(min(60.0, ttl_s / 4))
            self._store.expire()

    @hookimpl
    def routes(self) -> Sequence[BaseRoute]:
        return ExpertRoutes(self._store).routes()

    @hookimpl
    def describe_session(self, session: Session) -> dict[str, Any] | None:
        told = self._sessions.described(session.id)
        return {"routed_experts": told} if told else None

    @hookimpl
    def session_closed(self, session: Session) -> None:
        self._sessions.forget(session.id)

    @hookimpl
    def metrics(self) -> str:
        return render(self._capture.counts, self._store)

    # ----------------------------------------------------------------------------------------------- during a request
    @hookimpl
    def attempt_start(self, exchange: Exchange, attempt: Attempt) -> Awaitable[None] | None:
        request = attempt.request
        target = TARGETS.get(request.path)
        if target is None or request.method not in ("POST", "PUT"):
            return None
        try:
            body = request.ready_json()
        except MalformedBody:
            return None  # the worker says what is wrong with it
        if body is None:
            return self._ask_later(exchange, request, target)
        self._ask(exchange, request, target, body)
        return None

    async def _ask_later(self, exchange: Exchange, request: Request, target: str) -> None:
        try:
            body = await request.shared_json()
        except MalformedBody:
            return
        self._ask(exchange, request, target, body)

    def _ask(self, exchange: Exchange, request: Request, target: str, body: object) -> None:
        if not isinstance(body, dict):
            return
        names = [] if target == GENERATE else [name for name, _ in request.headers]
        asked = read_asked(target, body, names, needs_ids=exchange.session_id is not None)
        plan = self._capture.plan(asked, exchange.session_id)
        exchange.state[PLAN] = plan
        for key, value in edits(asked, body, plan.start).items():
            request.set_key(key, value)

    @hookimpl
    def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Awaitable[Answer]:
        if exchange.request.path not in TARGETS:
            return call_next(exchange)
        exchange.request.accept_identity()
        return self._answer(exchange, call_next)

    async def _answer(self, exchange: Exchange, call_next: CallNext) -> Answer:
        answer = await call_next(exchange)
        plan = exchange.state.get(PLAN)
        if plan is None or answer.status != 200:
            return answer
        if not plan.asked.is_stream and (body := answer.arrived_body()) is not None:
            reader = self._reader(plan, len(body))
            reader.feed(body)
            if len(body) <= IN_LOOP_BYTES:
                self._take_here(exchange, plan, reader)
            else:
                await self._take(exchange, plan, reader)
            _hide(answer, body, plan.asked.hidden)
        else:
            told = answer.headers.get("content-length")
            length = int(told) if told is not None and told.isdecimal() else None
            answer.chunks = self._passing(exchange, plan, answer.chunks, length)
            if length is not None and not (plan.asked.hidden or plan.asked.hides_sglext):
                answer.headers.set("content-length", str(length))  # nothing is taken out
        return answer

    def _reader(self, plan: Plan, expected_bytes: int) -> AnswerReader:
        return AnswerReader(
            plan.asked.target,
            is_stream=plan.asked.is_stream,
            max_bytes=self._settings.max_answer_bytes,
            expected_bytes=expected_bytes,
        )

    def _passing(
        self, exchange: Exchange, plan: Plan, chunks: AsyncIterator[bytes], length: int | None
    ) -> AsyncIterator[bytes]:
        asked, reader = plan.asked, self._reader(plan, length or 0)
        return passing(
            chunks,
            reader,
            length,
            stripper=MemberStripper(*asked.hidden) if asked.hidden else None,
            events=SglextFilter() if asked.hides_sglext else None,
            take=lambda: self._take(exchange, plan, reader),
            lose=lambda error: self._lose(exchange, plan, RowsError(Reason.BROKEN, str(error)), reader),
        )

    async def _take(self, exchange: Exchange, plan: Plan, reader: AnswerReader) -> None:
        if reader.bytes_fed <= IN_LOOP_BYTES:
            self._take_here(exchange, plan, reader)
            return
        try:
            judged = await asyncio.to_thread(self._judged, plan, reader, exchange.id)
        except Exception as error:  # noqa: BLE001  # logged and counted
            self._fail(exchange, plan, error, reader)
            return
        self._keep(exchange, plan, judged)

    def _take_here(self, exchange: Exchange, plan: Plan, reader: AnswerReader) -> None:
        try:
            judged = self._judged(plan, reader, exchange.id)
        except Exception as error:  # noqa: BLE001  # logged and counted
            self._fail(exchange, plan, error, reader)
            return
        self._keep(exchange, plan, judged)

    def _fail(self, exchange: Exchange, plan: Plan, error: Exception, reader: AnswerReader) -> None:
        """The client has its answer: a fault here must not break it."""
        if not isinstance(error, RowsError):
            log.error("routed experts of %r are lost", exchange, exc_info=error)
            error = RowsError(Reason.UNREADABLE, repr(error))
        self._lose(exchange, plan, error, reader)

    def _keep(self, exchange: Exchange, plan: Plan, judged: list[tuple[Part, Verdict]]) -> None:
        for part, verdict in judged:
            self._capture.keep(plan, part, verdict, _worker_of(exchange))
        self._publish(exchange, judged[0][1])

    def _judged(self, plan: Plan, reader: AnswerReader, fallback_key: str) -> list[tuple[Part, Verdict]]:
        return [(part, self._capture.judge(plan, part)) for part in reader.finish(fallback_key)]

    def _lose(self, exchange: Exchange, plan: Plan, error: RowsError, reader: AnswerReader) -> None:
        self._capture.lose(plan, error, _worker_of(exchange), reader.id or exchange.id)
        self._publish(exchange, Verdict(reason=error.reason, detail=error.detail))

    @staticmethod
    def _publish(exchange: Exchange, verdict: Verdict) -> None:
        block, fault = verdict.block, "" if verdict.reason is None else f"{verdict.reason}: {verdict.detail}"
        exchange.state[ROUTED_EXPERTS] = RoutedExperts(
            block.experts if block else None, block.start if block else 0, fault
        )


def _hide(answer: Answer, body: bytes, members: Sequence[bytes]) -> None:
    """Takes out what is in the answer because it was asked for here, if it is."""
    for member in members:
        if member in body:
            stripper = MemberStripper(*members)
            answer.set_body(stripper.feed(body) + stripper.rest())
            return


def _worker_of(exchange: Exchange) -> str:
    return exchange.worker.url if exchange.worker else "none"
