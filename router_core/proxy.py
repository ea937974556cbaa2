"""One exchange from its first byte to its last: session and plan, hooks, attempts, delivery, and the end."""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import Coroutine, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeVar

from router_core import debug
from router_core.attempt import Attempts
from router_core.clock import Clock
from router_core.delivery import Delivery, Send
from router_core.errors import ClientLeft, Reject
from router_core.failures import SHUTTING_DOWN, answer_for, outcome_of
from router_core.headers import Headers, content_length, end_to_end, forwarded
from router_core.holds import HoldQueue
from router_core.in_use import InUse
from router_core.plan import Plan
from router_core.plans import Plans
from router_core.protocol import HAS_LEFT
from router_core.pump import Pump, Receive
from router_core.sessions import SessionTable, check_session_id
from router_core.settings import RouterSettings
from router_core.tasks import Tasks
from router_core.types import Answer, Exchange, Outcome, OutcomeKind, Request
from router_core.upstream import Upstream
from router_core.workers import WorkerTable

log = logging.getLogger("router_core")

Scope = MutableMapping[str, Any]
T = TypeVar("T")

PLUGINS_HEADER, PROFILE_HEADER = "x-router-plugins", "x-router-profile"
NOT_FORWARDED = frozenset(
    (b"host", b"content-length", b"expect", *(name.encode() for name in (PLUGINS_HEADER, PROFILE_HEADER, debug.HEADER)))
)
"""Fields that this hop writes itself, or that are for the router alone."""

BROKEN = "router_core.broken"
"""Scope key of a `Broken`, put there by the outermost guard."""


class Broken:
    """Says that an answer broke after its head had left, so that no middleware can make a clean end of it."""

    __slots__ = ("is_broken",)

    def __init__(self) -> None:
        self.is_broken = False


@dataclass(frozen=True, slots=True)
class Serving:
    """What a new exchange is served by, to its end: the plans, and who holds the work it starts."""

    plans: Plans
    tasks: Tasks
    in_use: InUse


class _Services:
    """`ExchangeServices` of one plan."""

    __slots__ = ("_plan", "_tasks")

    def __init__(self, plan: Plan, tasks: Tasks) -> None:
        self._plan, self._tasks = plan, tasks

    def settings_of(self, plugin: object) -> Any:
        return self._plan.settings_of(plugin)

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> object:
        return self._tasks.spawn(work, name=name)


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
        self._settings = settings
        self.serving = serving
        self._sessions = sessions
        self._attempts = Attempts(workers, upstream, holds, clock, hold_for_starting=settings.hold_for_starting_workers)
        self._clock = clock
        self._prefix = uuid.uuid4().hex[:8]
        self._serial = itertools.count(1)
        self.running: set[Exchange] = set()
        self.is_stopping = False

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, *, path: bytes | None = None, session_id: str | None = None
    ) -> None:
        """Runs one exchange. ``path`` and ``session_id`` are given for a turn below ``/sessions/{id}/``."""
        serving = self.serving
        serving.in_use.enter()
        try:
            await self._run(scope, receive, send, path, session_id, serving)
        finally:
            serving.in_use.leave()

    async def _run(
        self, scope: Scope, receive: Receive, send: Send, path: bytes | None, session_id: str | None, serving: Serving
    ) -> None:
        exchange, pump = self._exchange(scope, receive, path)
        try:
            if self._settings.debug_header:
                exchange.is_debugged = debug.is_wanted(Headers(scope["headers"]).get(debug.HEADER))
            plan = self._enter(exchange, session_id, serving)
        except Exception as error:  # noqa: BLE001  # whatever it is, it ends this exchange alone, with an answer
            await self._refuse(exchange, error, send, serving.plans.nothing)
            return
        delivery = Delivery(
            exchange,
            plan,
            send,
            http_version=scope["http_version"],
            max_collected_bytes=self._settings.max_collected_bytes,
        )
        self.running.add(exchange)
        outcome = Outcome(OutcomeKind.FAILED, 500, "internal_error")
        try:
            outcome = await self._serve(exchange, plan, pump, delivery)
        except asyncio.CancelledError:
            if (why := exchange.take_interruption()) is None:
                kind = OutcomeKind.TIMED_OUT if self.is_stopping else OutcomeKind.CLIENT_LEFT
                outcome = Outcome(kind, None, "cancelled", "the server gave the request up")
                if exchange.outliving is not None:
                    exchange.outliving.cancel()
                raise
            _uncancel()
            outcome = outcome_of(why)
        finally:
            exchange.on_interrupt(None)
            if delivery.has_begun and not delivery.is_whole and isinstance(broken := scope.get(BROKEN), Broken):
                broken.is_broken = True
            pump.detach()
            await self._end(exchange, plan, outcome, delivery)

    def cut(self) -> None:
        """Stops every exchange that runs: a 503 where nothing of an answer has left, else a broken transfer."""
        for exchange in list(self.running):
            exchange.interrupt(
                Reject(503, SHUTTING_DOWN, "the router stops (router.shutdown_grace_s)", retry_after_s=1)
            )
            if exchange.outliving is not None:
                exchange.outliving.cancel()

    @staticmethod
    async def _refuse(exchange: Exchange, error: Exception, send: Send, nothing: Plan) -> None:
        """Answers a request for which no plan could be found."""
        delivery = Delivery(exchange, nothing, send, http_version="1.1", max_collected_bytes=0)
        answer = answer_for(error, exchange)
        try:
            await delivery.begin(answer)
            await delivery.finish(answer)
        except ClientLeft:
            pass

    # ----------------------------------------------------------------------------------------------------- beginning
    def _exchange(self, scope: Scope, receive: Receive, path: bytes | None) -> tuple[Exchange, Pump]:
        raw = end_to_end(scope["headers"])
        client = scope.get("client")
        forwarded(raw, client[0] if client else None, scope["scheme"])
        names = {name for name, _ in scope["headers"]}
        is_chunked = b"transfer-encoding" in names
        exchange: Exchange
        pump = Pump(
            receive,
            lambda error: exchange.interrupt(error),
            length=None if is_chunked else content_length(scope["headers"]),
            is_declared=is_chunked or b"content-length" in names,
            max_body_bytes=self._settings.max_body_bytes,
            max_held_bytes=self._settings.max_held_body_bytes,
            has_left=scope.get(HAS_LEFT),
        )
        headers = Headers([pair for pair in raw if pair[0] not in NOT_FORWARDED])
        whole_path = scope["raw_path"] if path is None else path
        request = Request(scope["method"], whole_path, scope["query_string"], headers, pump)
        exchange = Exchange(f"{self._prefix}-{next(self._serial):x}", request, started_at=self._clock.now())
        exchange.client_host = client[0] if client else None
        own = Headers(scope["headers"])
        exchange.switches = (own.get(PROFILE_HEADER), own.get(PLUGINS_HEADER))
        return exchange, pump

    def _enter(self, exchange: Exchange, session_id: str | None, serving: Serving) -> Plan:
        """Finds session, profile and plan. Raises Reject."""
        if self.is_stopping:
            raise Reject(503, SHUTTING_DOWN, "the router stops and takes no new request", retry_after_s=1)
        session = None
        if session_id is not None:
            check_session_id(session_id)
            session = self._sessions.require(session_id)
        else:
            for name in self._settings.session_headers:
                if (session_id := exchange.request.headers.get(name)) is not None:
                    session = self._sessions.get(session_id)
                    break
        exchange.session_id = session_id
        profile, switches = exchange.switches
        if profile is None and session is not None:
            profile = session.profile
        plan = serving.plans.of(profile, switches)
        if session is not None:
            self._sessions.enter(session, exchange)
        exchange.serve_by(_Services(plan, serving.tasks))
        return plan

    # ------------------------------------------------------------------------------------------------------- serving
    async def _serve(self, exchange: Exchange, plan: Plan, pump: Pump, delivery: Delivery) -> Outcome:
        """Runs the hooks, gets an answer and delivers it; says how the exchange ended."""
        task = asyncio.current_task()
        assert task is not None  # a coroutine that runs has a task
        exchange.on_interrupt(task.cancel)
        reading: asyncio.Task[None] | None = None
        try:
            try:
                await self._stoppable(exchange, pump.begin())
                reading = asyncio.get_running_loop().create_task(pump.run(), name=f"pump {exchange.id}")
                answer = await self._stoppable(exchange, self._answer(exchange, plan))
                await self._stoppable(exchange, delivery.prepare(answer))
                outcome = _outcome(exchange, answer)
            except ClientLeft:
                raise
            except Exception as error:  # noqa: BLE001  # whatever it is, it ends this exchange alone, with an answer
                answer, outcome = answer_for(error, exchange), outcome_of(error)
            return await self._deliver(exchange, plan, answer, outcome, delivery)
        except ClientLeft as error:
            return outcome_of(error)
        finally:
            if reading is not None:
                reading.cancel()

    async def _answer(self, exchange: Exchange, plan: Plan) -> Answer:
        identity = plan.identify(exchange)
        if identity is not None:
            exchange.identity = identity
        answer = await plan.request_start(exchange)
        if answer is None:
            answer = await plan.around_upstream(exchange, lambda e: self._attempts.make(e, plan))
        return answer

    async def _deliver(
        self, exchange: Exchange, plan: Plan, answer: Answer, outcome: Outcome, delivery: Delivery
    ) -> Outcome:
        """Sends the answer; an error before the head has left is told in its place, a later one breaks the transfer."""
        try:
            self._stamp(exchange, plan, answer)
            await self._stoppable(exchange, plan.response_start(exchange, answer))
            if delivery.collects:  # a hook may have wrapped it
                await self._stoppable(exchange, delivery.prepare(answer))
            await self._stoppable(exchange, delivery.begin(answer))
        except ClientLeft:
            raise
        except Exception as error:  # noqa: BLE001  # the same: an answer for this exchange alone
            if delivery.has_begun:
                return self._broken(exchange, error)
            await _give_up(answer)
            answer, outcome = answer_for(error, exchange), outcome_of(error)
            await self._stoppable(exchange, delivery.begin(answer))
        try:
            await self._stoppable(exchange, delivery.finish(answer))
        except ClientLeft:
            raise
        except Exception as error:  # noqa: BLE001  # the head has left: all that can be done is to break the transfer
            return self._broken(exchange, error)
        return outcome

    @staticmethod
    def _broken(exchange: Exchange, error: Exception) -> Outcome:
        log.warning("%r broke after its answer had begun: %r", exchange, error)
        return outcome_of(error)

    def _stamp(self, exchange: Exchange, plan: Plan, answer: Answer) -> None:
        if exchange.worker is not None and answer.error_code is None:
            answer.headers.set("x-router-worker", exchange.worker.url)
        if exchange.is_debugged:
            debug.show(exchange, answer, plan.names, self._clock.now())

    @staticmethod
    async def _stoppable(exchange: Exchange, work: Coroutine[Any, Any, T]) -> T:
        """Awaits ``work``; an interruption of the exchange comes out as the error it was interrupted with."""
        try:
            result = await work
        except asyncio.CancelledError:
            if (error := exchange.take_interruption()) is None:
                raise
            _uncancel()
            raise error from None
        except BaseException:
            if (error := exchange.take_interruption()) is not None:
                await _flush_cancellation()
                raise error from None
            raise
        if (error := exchange.take_interruption()) is not None:
            await _flush_cancellation()
            raise error
        return result

    # -------------------------------------------------------------------------------------------------------- ending
    async def _end(self, exchange: Exchange, plan: Plan, outcome: Outcome, delivery: Delivery) -> None:
        """Attempts first, then what wrapped the answer, then the observers: once, even if cancelled meanwhile.

        Work that outlives the client comes before all that; it is told that the client has left by its wrapped answer.
        """
        work = exchange.outliving
        try:
            if work is not None and not work.done():
                await self._let_go(exchange, delivery)
                await asyncio.wait([work])
        finally:
            if work is not None:
                work.cancel()
            exchange.ended_at = self._clock.now()
            self._attempts.end_all(exchange, outcome)
            try:
                await self._let_go(exchange, delivery)
            finally:
                self._leave(exchange, plan, outcome)

    async def _let_go(self, exchange: Exchange, delivery: Delivery) -> None:
        """Gives up an answer that was not delivered whole."""
        if delivery.answer is None or delivery.is_whole:
            return
        try:
            async with asyncio.timeout(self._settings.hook_timeout_s):
                await _give_up(delivery.answer)
        except TimeoutError:
            log.error("%r: what wrapped its answer does not end (router.hook_timeout_s)", exchange)

    def _leave(self, exchange: Exchange, plan: Plan, outcome: Outcome) -> None:
        if exchange.session is not None:
            self._sessions.leave(exchange.session, exchange)
        self.running.discard(exchange)
        if outcome.kind not in (OutcomeKind.OK, OutcomeKind.CLIENT_LEFT):
            worker = exchange.worker.url if exchange.worker else "none"
            log.warning(
                "%r ended %s (%s), worker %s: %r", exchange, outcome.kind, outcome.code, worker, outcome.message
            )
        plan.response_end(exchange, outcome)


def _outcome(exchange: Exchange, answer: Answer) -> Outcome:
    """How an exchange ended whose answer is whole: nobody but the router or a plugin refuses without an attempt."""
    status = answer.status if isinstance(answer.status, int) else 0  # what is none is refused when it is delivered
    if status >= 400 and not exchange.attempts:
        return Outcome(OutcomeKind.REJECTED, status, answer.error_code)
    return Outcome(OutcomeKind.WORKER_ERROR if status >= 500 else OutcomeKind.OK, status)


async def _give_up(answer: Answer) -> None:
    """Closes an answer's stream; what a plugin's wrapper raises meanwhile changes nothing any more."""
    try:
        await answer.aclose()
    except Exception as error:  # noqa: BLE001  # the exchange is over
        log.debug("while giving up an answer: %r", error)


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
