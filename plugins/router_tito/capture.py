"""Which requests are captured, which of them are retries, and what is kept of them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field

from router_core import Answer, CallNext, Exchange, Outcome, Reject, Router, Session, StateKey

from .call import Call, Seat
from .captured_turn import UNTRAINABLE_HEADER, CapturedTurn
from .chat_request import ChatRequest
from .engines import Detector, Engines, EngineServices
from .errors import MessageError, TraceError
from .limits import check_turn, stop
from .matcher import Matcher
from .node import CommitResult
from .renderers import RendererSource
from .retries import Evidence
from .session_options import SessionOptions
from .session_trace import SessionTrace
from .settings import TitoSettings
from .trace import Trace
from .traces import TRACE, TraceTable
from .turn import PendingTurn

log = logging.getLogger(__name__)

CHAT = b"/v1/chat/completions"
"""Raw path of what is captured, when it is posted."""

TURN = StateKey[CapturedTurn]("tito turn")
SEAT = StateKey[Seat]("tito seat")


@dataclass(slots=True)
class Counts:
    """What happened in this process so far."""

    turns: Counter[str] = field(default_factory=Counter)
    """Committed turns, by how their prompt came about."""
    bridges: Counter[str] = field(default_factory=Counter)
    """Rendered prompts: ``bridge``, or why there was none."""
    observed: Counter[str] = field(default_factory=Counter)
    """Turns whose prompt was left to the worker, by reason."""
    refused: Counter[str] = field(default_factory=Counter)
    """Calls that brought no finished sample, by reason."""
    untrainable: Counter[str] = field(default_factory=Counter)
    """Turns that were answered but are not in a trace, by reason."""
    drift: Counter[str] = field(default_factory=Counter)
    mismatches: Counter[str] = field(default_factory=Counter)
    """What ``debug`` found."""
    coalesced: int = 0
    """Requests that were given another one's answer."""
    evicted: int = 0
    """Sessions evicted for want of room."""


class Capture:
    """Captures the chat turns of open sessions."""

    def __init__(self, router: Router, settings: TitoSettings) -> None:
        self._router = router
        self._settings = settings
        self._matcher = Matcher(settings.matchers)
        self.clock = router.clock
        self.traces = TraceTable()
        self.counts = Counts()
        self.renderers = RendererSource(router.find_tokenizer, settings.tokenizer, settings.thinking)
        self.detector = Detector(
            router,
            fixed=None if settings.worker_kind == "auto" else settings.worker_kind,
            timeout_s=settings.detect_timeout_s,
        )
        self.engines = Engines(
            EngineServices(
                router.control,
                lambda: self.renderers.tokenizer,
                tool_form=settings.tool_form,
                default_max_tokens=settings.default_max_tokens,
            )
        )

    # ------------------------------------------------------------------------------------------------------- sessions
    def open(self, session: Session, options: SessionOptions) -> None:
        """A session is about to open. Raises Reject (503) while there is no room for it."""
        self._make_room()
        if excess := self.traces.excess(self._settings):
            raise Reject(503, "no_room", f"{excess}, and every session is running", retry_after_s=1)
        self.traces.of(session, lambda: self._new_trace(session, options))

    def trace_of(self, session: Session) -> SessionTrace:
        """The trace of an open session."""
        return self.traces.of(session, lambda: self._new_trace(session, SessionOptions()))

    def _new_trace(self, session: Session, options: SessionOptions) -> SessionTrace:
        trace = Trace(matcher=self._matcher, expects_routed_experts=self._settings.routed_experts)
        return SessionTrace(session.id, trace, options, opened_at=session.opened_at)

    async def _session_of(self, exchange: Exchange, settings: TitoSettings) -> Session | None:
        """The session of a request; one that a header names is opened, if that is wanted. Raises Reject."""
        if exchange.session is not None or not settings.implicit_sessions or exchange.session_id is None:
            return exchange.session
        sessions = self._router.sessions
        session = sessions.get(exchange.session_id)
        if session is None:
            try:
                sessions.require(exchange.session_id)
            except Reject as error:
                if error.status != 404:
                    raise
            session = await self._router.open_session({"session_id": exchange.session_id})
        sessions.enter(session, exchange)
        return session

    # ---------------------------------------------------------------------------------------------------------- turns
    async def serve(self, exchange: Exchange, call_next: CallNext, settings: TitoSettings) -> Answer:
        """Answer a chat turn: captured if it is one of a session, else passed on."""
        session = await self._session_of(exchange, settings)
        if session is None:
            return await call_next(exchange)
        trace = self.trace_of(session)
        chat = ChatRequest.read(await exchange.request.body())
        if chat is None:
            return await self._pass_unread(exchange, call_next, settings, trace)
        chat.check()
        try:
            pending = trace.trace.prepare_turn(chat.messages, chat.tools, chat.template_kwargs)
        except MessageError:
            return await self._pass_unread(exchange, call_next, settings, trace)
        except TraceError:
            raise Reject(409, "session_closed", f"session {session.id!r} was closed", "session_id") from None
        evidence = Evidence.read(exchange.request.headers, (name for name, _ in session.bound_headers))
        key = chat.key(pending.request)
        call = trace.find_retried(settings.retry, key, evidence)
        if call is None:
            self._check_room(trace)
            call = self._begin(exchange, call_next, settings, trace, chat, pending, key, evidence)
        else:
            self.counts.coalesced += 1
        exchange.state[TRACE] = trace
        seat = exchange.state[SEAT] = Seat(call)
        return await seat.answer(exchange)

    def _begin(
        self,
        exchange: Exchange,
        call_next: CallNext,
        settings: TitoSettings,
        trace: SessionTrace,
        chat: ChatRequest,
        pending: PendingTurn,
        key: bytes,
        evidence: Evidence,
    ) -> Call:
        """A call of its own; nothing is awaited between looking for a former one and this."""

        def deserted(call: Call) -> None:
            self._start_grace(exchange, call, settings.coalesce_grace_s)

        call = Call(key, evidence, on_deserted=deserted)
        trace.calls.append(call)
        overrides = trace.options.overrides(chat.body)
        turn = CapturedTurn(self, exchange, settings, trace, chat, overrides, pending, call)
        exchange.state[TURN] = turn
        call.runs_in(exchange.outlive_client(turn.run(call_next)))
        return call

    async def _pass_unread(
        self, exchange: Exchange, call_next: CallNext, settings: TitoSettings, trace: SessionTrace
    ) -> Answer:
        """A request whose messages cannot be read: the worker refuses it, and if it does not, the turn is missed."""
        answer = await call_next(exchange)
        if answer.status == 200 and not trace.is_closed:
            reason = "unreadable_request"
            self.missed(trace, reason)
            answer.headers.set(UNTRAINABLE_HEADER, reason)
            if settings.on_uncapturable == "fail":
                raise Reject(502, "untrainable", f"the turn cannot be trained on: {reason}")
        return answer

    def _check_room(self, trace: SessionTrace) -> None:
        """Raise a clean stop if the session may have no further turn."""
        running = sum(not call.is_over for call in trace.calls)
        age_s = self.clock.now() - trace.opened_at
        settings = self._settings
        try:
            check_turn(trace.options, turns=trace.turns + running, age_s=age_s)
            if len(trace.trace.nodes) >= settings.max_session_nodes:
                raise stop("plugins.tito.max_session_nodes", f"{settings.max_session_nodes} messages")
            if trace.nbytes >= settings.max_session_bytes:
                raise stop("plugins.tito.max_session_bytes", f"{settings.max_session_bytes} bytes")
        except Reject as error:
            trace.end_status = error.param
            raise

    def _start_grace(self, exchange: Exchange, call: Call, grace_s: float) -> None:
        """The last client of a call has left: it goes on for a while, if a worker has it at all."""
        was_sent = any(attempt.request_sent for attempt in exchange.attempts)
        if not was_sent or not grace_s:
            call.cancel()
            return
        call.deserted_at = self.clock.now()
        try:
            self._router.spawn(self._end_grace(call, grace_s), name="grace of a deserted call")
        except RuntimeError:
            call.cancel()

    async def _end_grace(self, call: Call, grace_s: float) -> None:
        await self.clock.sleep(max(0.0, call.deserted_at + grace_s - self.clock.now()))
        if not call.seats and not call.is_over and self.clock.now() - call.deserted_at >= grace_s:
            call.cancel()

    # ------------------------------------------------------------------------------------------------------- outcomes
    def committed(self, trace: SessionTrace, call: Call, result: CommitResult) -> None:
        """A turn is in the trace."""
        call.node_id = result.node_id
        trace.turns += 1
        trace.finished_at[result.node_id] = time.time()
        self.counts.turns[result.how] += 1

    def finished(self, trace: SessionTrace) -> None:
        """A call is over, however: what need not be kept goes, and if too much is kept, whole sessions do."""
        trace.forget_calls(self._settings.max_kept_answers)
        if not trace.is_closed:
            self.traces.measure(trace)
            self._make_room(spared=trace)

    def missed(self, trace: SessionTrace, reason: str) -> None:
        """A turn was answered, but is not in the trace."""
        trace.turns += 1
        trace.uncaptured[reason] += 1
        self.counts.untrainable[reason] += 1

    def ended(self, exchange: Exchange, outcome: Outcome) -> None:
        """An exchange is over: whoever had a seat has its answer or will not."""
        state = exchange.state
        if state.get(TURN) is None and state.get(SEAT) is None:
            return
        state.pop(TURN)  # it holds the exchange: no cycle is to be left
        seat, trace = state.pop(SEAT), state.pop(TRACE)
        if seat is None or trace is None:
            return
        if not outcome.is_ok:
            seat.give_up()
            return
        seat.served()
        if seat.call.node_id is not None:
            trace.trace.mark_delivered(seat.call.node_id)

    def _make_room(self, spared: SessionTrace | None = None) -> None:
        """Evict the longest idle sessions while too much is kept."""
        while excess := self.traces.excess(self._settings):
            idle = next((session for session in self._router.sessions if self._may_go(session, spared)), None)
            if idle is None:
                log.warning("%s, and no session is idle", excess)
                return
            self.counts.evicted += 1
            self._router.sessions.evict(idle, excess)

    def _may_go(self, session: Session, spared: SessionTrace | None) -> bool:
        trace = self.traces.by_id.get(session.id)
        if trace is None or trace is spared or not trace.trace.nodes:
            return False
        return not session.running and not session.closing
