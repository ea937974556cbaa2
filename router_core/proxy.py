"""One exchange from its first byte to its last: session and plan, hooks, attempts, delivery, and the end."""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import suppress
from typing import Final

from router_core import debug
from router_core.attempt import Attempts, passed
from router_core.clock import Clock
from router_core.deadline import within
from router_core.delivery import Delivery
from router_core.errors import ClientLeft, Reject
from router_core.failures import SHUTTING_DOWN, answer_for, outcome_of
from router_core.headers import Headers
from router_core.holds import HoldQueue
from router_core.in_use import InUse
from router_core.inbound import Inbound
from router_core.plan import Plan
from router_core.plans import Plans
from router_core.request_head import RequestHead, SessionHeaders
from router_core.sessions import SessionTable, check_session_id
from router_core.settings import RouterSettings
from router_core.tasks import Tasks
from router_core.types import Answer, Exchange, Outcome, OutcomeKind, Request
from router_core.upload import Upload
from router_core.upstream import Upstream
from router_core.workers import WorkerTable

log = logging.getLogger("router_core")


UNKNOWN: Final = Outcome(OutcomeKind.FAILED, 500, "internal_error")


class Serving:
    """What a new exchange is served by, to its end: the plans, and who holds the work it starts."""

    __slots__ = ("in_use", "plans", "spawn")

    def __init__(self, plans: Plans, tasks: Tasks, in_use: InUse) -> None:
        self.plans, self.spawn, self.in_use = plans, tasks.spawn, in_use


class Proxy:
    """Serves every request that no route of the router claims, and every turn of a session.

    ``serving`` may be replaced: an exchange keeps what it began with.
    """

    def __init__(
        self,
        settings: RouterSettings,
        serving: Serving,
        workers: WorkerTable,
        sessions: SessionTable,
        upstream: Upstream,
        holds: HoldQueue,
        clock: Clock,
    ) -> None:
        self._max_body_bytes = settings.max_body_bytes
        self._max_held_body_bytes = settings.max_held_body_bytes
        self._max_collected_bytes = settings.max_collected_bytes
        self._hook_timeout_s = settings.hook_timeout_s
        self._may_debug = settings.debug_header
        self.serving = serving
        self._sessions = sessions
        self._session_headers = SessionHeaders(settings.session_headers)
        self._attempts = Attempts(workers, upstream, holds, clock, hold_for_starting=settings.hold_for_starting_workers)
        self._now = clock.now
        self._prefix = uuid.uuid4().hex[:8] + "-"
        self._serial = 0
        self.running: set[Exchange] = set()
        self.is_stopping = False

    async def serve(self, inbound: Inbound, session_id: str | None = None) -> None:
        """Runs one exchange. ``session_id`` is given for a turn below ``/sessions/{id}/``."""
        serving = self.serving
        head = RequestHead(inbound.headers, inbound.client_host, inbound.scheme, self._session_headers)
        upload = Upload(
            length=head.content_length,
            is_declared=head.is_declared,
            max_body_bytes=self._max_body_bytes,
            max_held_bytes=self._max_held_body_bytes,
        )
        request = Request(inbound.method, inbound.path, inbound.query, Headers(head.fields), upload)
        self._serial += 1
        exchange = Exchange(self._prefix + str(self._serial), request, started_at=self._now())
        exchange.client_host = inbound.client_host
        exchange.switches = (head.profile, head.plugins)
        plan, refusal = serving.plans.nothing, None
        try:
            if head.debug is not None and self._may_debug:
                exchange.is_debugged = debug.is_wanted(head.debug)
            plan = self._enter(exchange, session_id, head.session_id, serving)
        except Exception as error:  # noqa: BLE001  # whatever it is, it ends this exchange alone, with an answer
            refusal = answer_for(error, exchange)
        if refusal is not None:
            with suppress(ClientLeft):
                if (sending := Delivery(exchange, plan, inbound, max_collected_bytes=0).send(refusal)) is not None:
                    await sending
            return
        serving.in_use.enter()
        delivery = Delivery(exchange, plan, inbound, max_collected_bytes=self._max_collected_bytes)
        self.running.add(exchange)
        outcome, fatal = UNKNOWN, None
        try:
            outcome = await self._serve(exchange, plan, upload, inbound, delivery)
        except asyncio.CancelledError as error:
            if (why := exchange.take_interruption()) is not None:
                _uncancel()
                outcome = outcome_of(why)
            else:
                kind = OutcomeKind.TIMED_OUT if self.is_stopping else OutcomeKind.CLIENT_LEFT
                outcome = Outcome(kind, None, "cancelled", "the server gave the request up")
                if exchange.outliving is not None:
                    exchange.outliving.cancel()
                _forget_trace(error)
                fatal = _Held(asyncio.CancelledError(*error.args))  # not the one that an attempt may keep
        except BaseException as error:  # noqa: BLE001  # raised again, once the exchange has ended
            fatal = _Held(error)
        exchange.on_interrupt(None)
        if delivery.has_begun and not delivery.is_whole:
            inbound.break_off()
        inbound.close()
        try:
            if delivery.is_whole and exchange.outliving is None:
                self._end(exchange, plan, outcome)
            else:
                await self._end_amid(exchange, plan, outcome, delivery)
        finally:
            serving.in_use.leave()
            exchange.attempt_error = None
            _forget_traces(exchange, upload)
        if fatal is not None:
            fatal.let_go()

    def cut(self) -> None:
        """Stops every exchange that runs: a 503 where nothing of an answer has left, else a broken transfer."""
        for exchange in list(self.running):
            exchange.interrupt(
                Reject(503, SHUTTING_DOWN, "the router stops (router.shutdown_grace_s)", retry_after_s=1)
            )
            if exchange.outliving is not None:
                exchange.outliving.cancel()

    # ----------------------------------------------------------------------------------------------------- beginning
    def _enter(self, exchange: Exchange, session_id: str | None, named: str | None, serving: Serving) -> Plan:
        """Finds session (by its path, or as a header ``named`` it), profile and plan. Raises Reject."""
        if self.is_stopping:
            raise Reject(503, SHUTTING_DOWN, "the router stops and takes no new request", retry_after_s=1)
        session = None
        if session_id is not None:
            check_session_id(session_id)
            session = self._sessions.require(session_id)
        else:
            session_id = named
            if session_id is not None:
                session = self._sessions.get(session_id)
        exchange.session_id = session_id
        profile, switches = exchange.switches
        if profile is None and session is not None:
            profile = session.profile
        plan = serving.plans.of_exchange(profile, switches)
        if session is not None:
            self._sessions.enter(session, exchange)
        exchange.serve_by(plan.settings, serving.spawn)
        return plan

    # ------------------------------------------------------------------------------------------------------- serving
    async def _serve(
        self, exchange: Exchange, plan: Plan, upload: Upload, inbound: Inbound, delivery: Delivery
    ) -> Outcome:
        """Runs the hooks, gets an answer and delivers it; says how the exchange ended."""
        exchange.on_interrupt(inbound.cancel)
        answer: Answer | None = None
        outcome, held = UNKNOWN, None
        try:
            try:
                if (opening := inbound.open(upload, exchange.interrupt)) is not None:
                    await opening
                exchange.request.arrived = upload.whole
                if (identity := plan.identify(exchange)) is not None:
                    exchange.identity = identity
                if plan.starts_requests:
                    asked = plan.request_start(exchange)
                    answer = asked if asked is None or isinstance(asked, Answer) else await asked
                if answer is None:
                    if plan.has_layers:
                        answer = await plan.around_upstream(exchange, lambda e: self._attempts.make(e, plan))
                    else:
                        answer = await self._attempts.make(exchange, plan)
                delivery.answer = answer
                if not delivery.knows_chunks:
                    await delivery.collect(answer)
                outcome = _outcome(exchange, answer)
            except BaseException as error:  # noqa: BLE001  # raised again where it is none of ours
                held = _Held(error)
            if held is not None:
                answer, outcome = await self._failed(exchange, held.take(), answer)
            if exchange.is_interrupted or answer is None:
                answer, outcome = await self._failed(exchange, None, answer)
            held = None
            try:
                self._stamp(exchange, plan, answer)
                if plan.starts_responses and (telling := plan.response_start(exchange, answer)) is not None:
                    await telling
                if (sending := delivery.send(answer)) is not None:
                    await sending
            except BaseException as error:  # noqa: BLE001  # the same
                held = _Held(error)
            if held is None and not exchange.is_interrupted:
                return outcome
            return await self._undelivered(exchange, answer, outcome, held, delivery)
        except ClientLeft as error:
            return outcome_of(error)

    async def _undelivered(
        self, exchange: Exchange, answer: Answer, outcome: Outcome, held: _Held | None, delivery: Delivery
    ) -> Outcome:
        """An error before the head has left is told in the answer's place, a later one breaks the transfer."""
        if held is not None and not delivery.has_begun:
            answer, outcome = await self._failed(exchange, held.take(), answer)
            held = None
            try:
                if (sending := delivery.send(answer)) is not None:
                    await sending
            except BaseException as error:  # noqa: BLE001  # raised again where it is none of ours
                held = _Held(error)
        if held is not None or exchange.is_interrupted:
            return self._broken(exchange, await _cause(exchange, held.take() if held is not None else None))
        return outcome

    @staticmethod
    async def _failed(exchange: Exchange, error: BaseException | None, answer: Answer | None) -> tuple[Answer, Outcome]:
        """What is answered in place of an answer, if there was one already.

        Raises ClientLeft, and what ends more than this exchange.
        """
        cause = await _cause(exchange, error)
        if answer is not None:
            await _give_up(answer)
        told = answer_for(cause, exchange), outcome_of(cause)
        _forget_trace(cause)
        return told

    @staticmethod
    def _broken(exchange: Exchange, error: Exception) -> Outcome:
        log.warning("%r broke after its answer had begun: %r", exchange, error)
        _forget_trace(error)
        return outcome_of(error)

    def _stamp(self, exchange: Exchange, plan: Plan, answer: Answer) -> None:
        if exchange.worker is not None and answer.error_code is None:
            answer.headers.set_raw(b"x-router-worker", exchange.worker.url.encode())
        if exchange.is_debugged:
            debug.show(exchange, answer, plan.names, self._now())

    # -------------------------------------------------------------------------------------------------------- ending
    async def _end_amid(self, exchange: Exchange, plan: Plan, outcome: Outcome, delivery: Delivery) -> None:
        """The same where something of it is under way, once, even if cancelled meanwhile.

        Work that outlives the client comes first; it is told that the client has left by its wrapped answer.
        """
        work, held = exchange.outliving, None
        try:
            if work is not None and not work.done():
                await self._let_go(exchange, delivery)
                await asyncio.wait([work])
        except BaseException as error:  # noqa: BLE001  # raised again, once the exchange has ended
            held = _Held(error)
        if work is not None:
            work.cancel()
        exchange.ended_at = self._now()
        self._attempts.end_all(exchange, outcome)
        try:
            await self._let_go(exchange, delivery)
        finally:
            self._end(exchange, plan, outcome)
        if held is not None:
            held.let_go()

    async def _let_go(self, exchange: Exchange, delivery: Delivery) -> None:
        """Gives up an answer that was not delivered whole."""
        if delivery.answer is None or delivery.is_whole:
            return
        try:
            await within(self._hook_timeout_s, _give_up(delivery.answer))
        except TimeoutError:
            log.error("%r: what wrapped its answer does not end (router.hook_timeout_s)", exchange)

    def _end(self, exchange: Exchange, plan: Plan, outcome: Outcome) -> None:
        """Attempts first, then the session, then the observers."""
        if exchange.ended_at is None:
            exchange.ended_at = self._now()
        self._attempts.end_all(exchange, outcome)
        if exchange.session is not None:
            self._sessions.leave(exchange.session, exchange)
        self.running.discard(exchange)
        if outcome.kind not in (OutcomeKind.OK, OutcomeKind.CLIENT_LEFT):
            worker = exchange.worker.url if exchange.worker else "none"
            log.warning(
                "%r ended %s (%s), worker %s: %r", exchange, outcome.kind, outcome.code, worker, outcome.message
            )
        plan.response_end(exchange, outcome)


class _Held:
    """What was raised, until it can be dealt with: nothing may be awaited while an exception is handled.

    (A compiled coroutine would show it to whoever runs meanwhile.)
    """

    __slots__ = ("_error",)

    def __init__(self, error: BaseException) -> None:
        self._error: BaseException | None = error

    def take(self) -> BaseException | None:
        """Hands it over, once: it holds its frames, and they this."""
        error, self._error = self._error, None
        return error

    def let_go(self) -> None:
        """Raises it."""
        error = self.take()
        try:
            if error is not None:
                raise error
        finally:
            error = None


def _outcome(exchange: Exchange, answer: Answer) -> Outcome:
    """How an exchange ended whose answer is whole: nobody but the router or a plugin refuses without an attempt."""
    status = answer.status if isinstance(answer.status, int) else 0  # what is none is refused when it is delivered
    if status >= 400 and not exchange.attempts:
        return Outcome(OutcomeKind.REJECTED, status, answer.error_code)
    return passed(status)


async def _give_up(answer: Answer) -> None:
    """Closes an answer's stream; what a plugin's wrapper raises meanwhile changes nothing any more."""
    try:
        await answer.aclose()
    except Exception as error:  # noqa: BLE001  # the exchange is over
        log.debug("while giving up an answer: %r", error)


async def _cause(exchange: Exchange, error: BaseException | None) -> Exception:
    """What stopped an exchange: its interruption, or else what was raised.

    Raises what ends more than this exchange, and ClientLeft.
    """
    cause: BaseException | None = exchange.take_interruption()
    if cause is None:
        cause = error
    elif isinstance(error, asyncio.CancelledError):
        _uncancel()
    else:
        await _flush_cancellation()
    if isinstance(cause, Exception) and not isinstance(cause, ClientLeft):
        return cause
    assert cause is not None  # whoever asks was interrupted, or has an error
    raise cause from None


def _forget_traces(exchange: Exchange, upload: Upload) -> None:
    """Errors that an exchange keeps hold its frames, and these the exchange: its body would wait for the collector."""
    _forget_trace(exchange.interruption)
    _forget_trace(upload.error)
    for attempt in exchange.attempts:
        _forget_trace(attempt.error)


def _forget_trace(error: BaseException | None) -> None:
    """Its own, and that of what it came of."""
    errors = [error]
    while errors:
        each = errors.pop()
        if each is not None and each.__traceback__ is not None:
            each.__traceback__ = None
            errors += (each.__cause__, each.__context__)


def _uncancel() -> None:
    if (task := asyncio.current_task()) is not None:
        while task.uncancel():
            pass


async def _flush_cancellation() -> None:
    """Takes in a cancellation of ours that was asked for too late to be delivered yet."""
    if (task := asyncio.current_task()) is not None and task.cancelling():
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            _uncancel()
