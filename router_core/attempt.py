"""One attempt: a worker is chosen and counted, the request goes out, the answer is handed on as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from router_core.clock import Clock
from router_core.dp_rank import hand_over_rank
from router_core.errors import AttemptWithdrawn, NoWorker
from router_core.failures import outcome_of
from router_core.headers import Headers
from router_core.holds import HoldQueue
from router_core.plan import Plan
from router_core.selection import select_worker
from router_core.types import Answer, Attempt, Exchange, Outcome, OutcomeKind
from router_core.types.answer import Arriving
from router_core.upstream import Incoming, Outgoing, Upstream
from router_core.workers import WorkerTable

_CURRENT_TASK: Final[Any] = asyncio.current_task
FROM_OUTSIDE = (OutcomeKind.CLIENT_LEFT, OutcomeKind.REJECTED, OutcomeKind.TIMED_OUT)
"""Ends of an exchange that end its attempts in the same way."""


class Attempts:
    """Makes attempts and ends each exactly once, whatever becomes of its answer."""

    def __init__(
        self, workers: WorkerTable, upstream: Upstream, holds: HoldQueue, clock: Clock, *, hold_for_starting: bool
    ) -> None:
        self._workers = workers
        self._upstream = upstream
        self._holds = holds
        self._now = clock.now
        self._hold_for_starting = hold_for_starting
        self._loop: asyncio.AbstractEventLoop | None = None

    async def make(self, exchange: Exchange, plan: Plan) -> Answer:
        """Held while no worker may take the exchange yet.

        Raises NoWorker, WorkerFault, what the hooks raise, and what the exchange was interrupted with.
        """
        while True:
            attempt: Attempt | None = None
            try:
                if exchange.interruption is not None:
                    raise exchange.interruption
                if exchange.ended_at is not None:
                    raise RuntimeError(f"{exchange!r} has ended: nothing is sent for it any more")
                attempt = self._begin(exchange, plan)
                hand_over_rank(attempt)
                if plan.starts_attempts and (telling := plan.attempt_start(exchange, attempt)) is not None:
                    await telling
                request = attempt.request
                outgoing = _outgoing(attempt, await request.body() if request.has_edits else request.ready_body)
                request.forget_json()
                return self._answer(attempt, await self._upstream.send(outgoing, _Sending(attempt, outgoing)))
            except BaseException as error:
                if attempt is not None:
                    why = exchange.interruption if isinstance(error, asyncio.CancelledError) else None
                    self.end(attempt, outcome_of(why or error), error)
                if not _is_tried_again(exchange, attempt, error):
                    raise
            if attempt is None:
                assert exchange.decision is not None and exchange.decision.waits_for is not None
                await self._holds.wait_for_worker(exchange, exchange.decision.waits_for)
            else:
                exchange.attempts.remove(attempt)
                await asyncio.sleep(0)  # a plugin that withdraws for ever must not stop the loop

    def _begin(self, exchange: Exchange, plan: Plan) -> Attempt:
        """Chooses and counts, with no await between. Raises NoWorker."""
        worker = select_worker(exchange, plan, self._workers, hold_for_starting=self._hold_for_starting)
        attempt = Attempt(worker, exchange.request.fork(), self._now())
        self._workers.count(attempt)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        attempt.on_end(_Stopping(_CURRENT_TASK(self._loop)))  # to find the loop is most of what it costs
        exchange.attempts.append(attempt)
        return attempt

    def _answer(self, attempt: Attempt, incoming: Incoming) -> Answer:
        """What the worker began to answer, as it comes."""
        attempt.on_end(incoming.close)
        if attempt.outcome is not None:  # the exchange ended in this moment
            attempt.close()
        attempt.status = status = incoming.status
        attempt.first_byte_at = attempt.worker.last_byte_at = self._now()
        return Answer(status, Headers(incoming.headers), chunks=Relay(self, attempt, incoming))

    def end(self, attempt: Attempt, outcome: Outcome, error: BaseException | None = None) -> None:
        """Releases the worker's inflight count and connection; only the first call counts."""
        if attempt.outcome is not None:
            return
        attempt.outcome, attempt.error = outcome, error
        attempt.ended_at = self._now()
        self._workers.release(attempt)
        attempt.close()
        attempt.hand_over()

    def end_all(self, exchange: Exchange, outcome: Outcome) -> None:
        """Ends what still runs of an exchange that is over: nothing outlives it, whoever started it."""
        for attempt in exchange.attempts:
            if attempt.outcome is None:
                self.end(attempt, outcome if outcome.kind in FROM_OUTSIDE else given_up(attempt))

    def touch(self, attempt: Attempt) -> None:
        """A byte came from the worker."""
        attempt.worker.last_byte_at = self._now()


class Relay(Arriving):
    """The chunks of a worker's answer; ends its attempt with the last one."""

    __slots__ = ("_attempt", "_attempts", "_incoming", "_is_whole")

    def __init__(self, attempts: Attempts, attempt: Attempt, incoming: Incoming) -> None:
        self._attempts = attempts
        self._attempt = attempt
        self._incoming = incoming
        self._is_whole = False

    def __aiter__(self) -> Relay:
        return self

    async def __anext__(self) -> bytes:
        if self._attempt.outcome is not None:
            if self._is_whole:
                raise StopAsyncIteration
            raise RuntimeError("this answer was given up: its rest will not come")
        try:
            chunk = await self._incoming.read()
        except Exception as error:
            self._attempts.end(self._attempt, outcome_of(error), error)
            raise
        if not chunk:
            self._is_whole = True
            self._attempts.end(self._attempt, passed(self._attempt.status or 0))
            raise StopAsyncIteration
        self._attempts.touch(self._attempt)
        return chunk

    def pass_to(self, take: Callable[[bytes], bool]) -> None:
        """Has ``take`` called with a chunk as it comes, while somebody waits for one, who then waits on.

        Where it answers False, and the last time, the chunk is given to who waits.
        """
        attempts, attempt = self._attempts, self._attempt

        def touch_and_take(chunk: bytes) -> bool:
            attempts.touch(attempt)
            return take(chunk)

        self._incoming.pass_to(touch_and_take)

    def take_whole(self) -> bytes | None:
        """Everything at once, if it is all here and nothing of it was read: the attempt has ended then."""
        if self._attempt.outcome is not None or (body := self._incoming.take_whole()) is None:
            return None
        self._is_whole = True
        attempt = self._attempt
        self._attempts.end(attempt, passed(attempt.status or 0))
        if attempt.ended_at is not None:
            attempt.worker.last_byte_at = attempt.ended_at
        return body

    async def aclose(self) -> None:
        """Somebody gave the answer up."""
        self._attempts.end(self._attempt, given_up(self._attempt))


def _passed(status: int, code: str | None = None) -> Outcome:
    return Outcome(OutcomeKind.WORKER_ERROR if status >= 500 else OutcomeKind.OK, status, code)


_PASSED: Final = {status: _passed(status) for status in range(100, 600)}


def passed(status: int) -> Outcome:
    """The end of what passed with this status."""
    return _PASSED.get(status) or _passed(status)


def given_up(attempt: Attempt) -> Outcome:
    """The end of an attempt whose answer nobody took to its end: no fault of its worker."""
    return outcome_of(asyncio.CancelledError()) if attempt.status is None else _passed(attempt.status, "given_up")


class _Stopping:
    """Cancels the task that makes an attempt, if it is not the one that ends it: a plugin may have made its own."""

    __slots__ = ("_task",)

    def __init__(self, task: Any) -> None:
        self._task = task

    def __call__(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()


class _Sending:
    """Called right before an attempt's first byte is written."""

    __slots__ = ("_attempt", "_outgoing")

    def __init__(self, attempt: Attempt, outgoing: Outgoing) -> None:
        self._attempt, self._outgoing = attempt, outgoing

    def __call__(self) -> None:
        self._attempt.begin_sending()
        if self._outgoing.stream is None:
            self._attempt.hand_over()


def _is_tried_again(exchange: Exchange, attempt: Attempt | None, error: BaseException) -> bool:
    """Whether an attempt that came to nothing is made once more: withdrawn, or there was no worker for now."""
    if isinstance(error, AttemptWithdrawn):
        return attempt is not None
    if isinstance(error, NoWorker):
        return attempt is None and exchange.decision is not None and bool(exchange.decision.waits_for)
    exchange.attempt_error = error
    return False


class _UntilHandedOver:
    """The pieces of a request's body; after the last one the worker has been given the whole request."""

    __slots__ = ("_attempt", "_pieces")

    def __init__(self, attempt: Attempt, pieces: AsyncIterator[bytes]) -> None:
        self._attempt, self._pieces = attempt, pieces

    def __aiter__(self) -> _UntilHandedOver:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self._pieces.__anext__()
        except StopAsyncIteration:
            self._attempt.hand_over()
            raise


def _outgoing(attempt: Attempt, body: bytes | None) -> Outgoing:
    """``body`` is None where it is not in memory, and streamed."""
    request, worker = attempt.request, attempt.worker
    headers = request.headers.raw
    if worker.api_key is not None:
        headers = [pair for pair in headers if pair[0] != b"authorization"]
        headers.append((b"authorization", b"Bearer " + worker.api_key.encode()))
    target = request.path + b"?" + request.query if request.query else request.path
    outgoing = Outgoing(request.method, worker.base_url, target, headers, body)
    if body is None:
        outgoing.stream = _UntilHandedOver(attempt, request.source.stream())
        outgoing.length = request.source.length
    elif not body and not request.source.is_declared:
        outgoing.body = None
    return outgoing
