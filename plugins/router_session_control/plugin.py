"""The hooks of session control."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from router_core import (
    Answer,
    CallNext,
    Exchange,
    Outcome,
    PluginSettings,
    Router,
    Session,
    StateKey,
    Worker,
    hookimpl,
)
from router_session_control.control import Record, SessionController
from router_session_control.routes import SessionRoutes
from router_session_control.sessions import STATUSES
from router_session_control.settings import SessionControlSettings
from router_session_control.tokens import TokenCounts

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

COUNTS = StateKey[TokenCounts]("token counts")
TURN = StateKey[Record]("turn of a session")


class SessionControl:
    """Holds the turns of sessions that hang; a turn that runs is never touched."""

    requires_api: ClassVar[str] = ">=1,<2"
    several_processes: ClassVar[bool] = True
    Settings: ClassVar[type[PluginSettings]] = SessionControlSettings

    def __init__(self, settings: SessionControlSettings) -> None:
        self._settings = settings
        self._routes = SessionRoutes(hang_ttl_s=settings.hang_ttl_s, max_hang_ttl_s=settings.max_hang_ttl_s)
        self._control: SessionController | None = None
        self._router: Router

    @property
    def control(self) -> SessionController:
        if self._control is None:
            raise RuntimeError("the router has not started")
        return self._control

    # --------------------------------------------------------------------------------------------- outside a request
    @hookimpl
    async def startup(self, router: Router) -> None:
        settings = self._settings
        self._router = router
        self._control = SessionController(
            router, max_sessions=settings.max_sessions, session_ttl_s=settings.session_ttl_s
        )
        setattr(router, "session_control", self._control)  # noqa: B010 - a free attribute, which types do not know
        self._routes.attach(router, self._control, lambda message: router.tell_all(self, message))
        router.spawn(self._control.end_leases(), name="leases of hung sessions")

    @hookimpl
    async def told(self, message: Sequence[Any]) -> Any:
        return self._routes.hear(*message)

    @hookimpl
    def routes(self) -> Sequence[BaseRoute]:
        return self._routes.routes()

    @hookimpl
    async def session_opened(self, session: Session, body: dict[str, Any]) -> Sequence[str] | None:
        self.control.sessions.see(session.id, self._router.clock.now())
        return None

    @hookimpl
    def session_closed(self, session: Session, reason: str) -> None:
        record = self.control.sessions.get(session.id)
        if record is not None:
            self.control.resume([record])
            self.control.sessions.forget(session.id)

    @hookimpl
    def describe_session(self, session: Session) -> dict[str, Any] | None:
        record = self.control.sessions.get(session.id)
        return None if record is None else {"control_status": record.status, "total_tokens": record.total_tokens}

    @hookimpl
    def metrics(self) -> str:
        control = self.control
        counts = dict.fromkeys(STATUSES, 0)
        for record in control.sessions:
            counts[record.status] += 1
        lines = ["# TYPE router_session_control_sessions gauge"]
        lines += [f'router_session_control_sessions{{status="{name}"}} {count}' for name, count in counts.items()]
        for name, value in (("hangs", control.hangs), ("hangs_ended_by_ttl", control.ended_by_ttl)):
            lines.append(f"# TYPE router_session_control_{name}_total counter")
            lines.append(f"router_session_control_{name}_total {value}")
        return "\n".join(lines)

    # ------------------------------------------------------------------------------------------------ during a request
    @hookimpl
    def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Awaitable[Answer]:
        if exchange.session_id is None:
            return call_next(exchange)
        return self._take_turn(exchange, exchange.session_id, call_next)

    async def _take_turn(self, exchange: Exchange, session_id: str, call_next: CallNext) -> Answer:
        record = self.control.sessions.see(session_id, self._router.clock.now())
        await self.control.wait(record, exchange)
        record.running.add(exchange.id)
        exchange.state[TURN] = record
        return await call_next(exchange)

    @hookimpl
    def filter_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> Sequence[Worker] | None:
        record = exchange.state.get(TURN)
        goal = record.goes_to if record is not None else None
        if goal is None or goal not in workers:
            return None
        for worker in workers:
            if worker is not goal:
                exchange.leave_out(worker, "its session was continued at another worker")
        return [goal]

    @hookimpl
    def response_start(self, exchange: Exchange, answer: Answer) -> None:
        if answer.status == 200 and TURN in exchange.state and not answer.is_encoded:
            exchange.state[COUNTS] = TokenCounts()

    @hookimpl
    def response_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        if (counts := exchange.state.get(COUNTS)) is not None:
            counts.feed(chunk)

    @hookimpl
    def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
        record = exchange.state.get(TURN)
        if record is None:
            return
        record.running.discard(exchange.id)
        record.seen_at = self._router.clock.now()
        if not outcome.is_ok:
            return
        record.turns += 1
        record.worker = exchange.worker or record.worker
        if record.worker is record.goes_to:
            record.goes_to = None
        counts = exchange.state.get(COUNTS)
        if counts is not None and counts.prompt is not None:
            record.total_tokens = counts.prompt + (counts.completion or 0)
            record.completion_tokens += counts.completion or 0
