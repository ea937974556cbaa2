"""The hooks of token-exact capture: each hands over to `Capture` and its parts."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from starlette.routing import BaseRoute

from router_core import (
    Answer,
    Attempt,
    CallNext,
    ConfigError,
    Exchange,
    Outcome,
    Router,
    Session,
    hookimpl,
)
from router_tito.capture import CHAT, TURN, Capture
from router_tito.description import describe
from router_tito.engines import RENDERED_ELSEWHERE
from router_tito.export_routes import ExportRoutes
from router_tito.metrics_page import render
from router_tito.renderers import missing
from router_tito.routes import CapabilityRoutes
from router_tito.session_options import KEYS, SessionOptions
from router_tito.session_trace import SessionTrace
from router_tito.settings import TitoSettings
from router_tito.traces import TRACE


class Tito:
    """Keeps the exact ids that the model saw and sampled in the chat turns of open sessions."""

    requires_api = ">=1,<2"
    several_processes = True

    Settings = TitoSettings

    def __init__(self, settings: TitoSettings) -> None:
        self._settings = settings
        self._routes = CapabilityRoutes(settings)
        self._exports = ExportRoutes(settings)
        self._capture: Capture | None = None

    @property
    def capture(self) -> Capture:
        """What runs since `startup`."""
        if self._capture is None:
            raise RuntimeError("capture runs once the router has started")
        return self._capture

    @property
    def traces(self) -> dict[str, SessionTrace]:
        """Session id -> its trace, of all open sessions."""
        return self.capture.traces.by_id

    # ------------------------------------------------------------------------------------------------- start and stop
    @hookimpl
    async def startup(self, router: Router) -> None:
        capture = Capture(router, self._settings)
        if self._settings.mode not in RENDERED_ELSEWHERE and not capture.renderers.is_offered:
            raise ConfigError(missing(self._settings.tokenizer), key="plugins.tito.tokenizer")
        self._capture = self._routes.capture = capture
        self._exports.router = router
        if capture.renderers.is_offered:
            router.spawn(capture.renderers.warm(router.clock), name="self-test of the chat template")

    @hookimpl
    def routes(self) -> Sequence[BaseRoute]:
        return [*self._routes.routes(), *self._exports.routes()]

    @hookimpl
    def metrics(self) -> str | None:
        return render(self._capture) if self._capture is not None else None

    # ------------------------------------------------------------------------------------------------------- sessions
    @hookimpl
    async def session_opened(self, session: Session, body: dict[str, Any]) -> Sequence[str]:
        self.capture.open(session, SessionOptions.read(body))
        return KEYS

    @hookimpl
    def describe_session(self, session: Session) -> dict[str, Any] | None:
        trace = session.state.get(TRACE)
        return describe(trace, max_tokens=self._settings.max_described_tokens) if trace is not None else None

    @hookimpl
    def session_closed(self, session: Session) -> None:
        self.capture.traces.forget(session)

    # ---------------------------------------------------------------------------------------------------------- turns
    @hookimpl
    def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Awaitable[Answer]:
        if exchange.request.path != CHAT or exchange.request.method != "POST":
            return call_next(exchange)
        return self.capture.serve(exchange, call_next, exchange.settings(self))

    @hookimpl
    def attempt_start(self, exchange: Exchange, attempt: Attempt) -> Awaitable[None] | None:
        turn = exchange.state.get(TURN)
        return None if turn is None else turn.prepare(attempt)

    @hookimpl
    def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
        self.capture.ended(exchange, outcome)
