"""The dispatches of one answer: the first, and those that ask for the rest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from router_core import Answer, CallNext, Exchange, NoWorker, Reject, Worker, WorkerFault
from router_partial_rollout.limits import Counts

log = logging.getLogger(__name__)


class AbortAsked(Exception):
    """Somebody asked for an abort while nothing was at a worker."""


class Dispatches:
    """Belongs to one exchange. ``excluded`` are the workers that get none of it any more."""

    def __init__(self, exchange: Exchange, call_next: CallNext, counts: Counts) -> None:
        self.count = 0
        self.excluded: set[Worker] = set(exchange.excluded_workers)
        self._exchange = exchange
        self._call_next = call_next
        self._counts = counts

    def first(self) -> Awaitable[Answer]:
        """Raises what the layers within raise."""
        self.count = 1
        return self._call_next(self._exchange)

    async def rest(self) -> Answer | None:
        """The answer to a continuation; None where none is to be had, and what was made is all there is."""
        exchange = self._exchange
        try:
            answer = await self._next()
        except AbortAsked:
            self._counts.final["asked"] += 1
            return None
        except (NoWorker, WorkerFault) as error:
            self._give_up(error)
            return None
        except Reject as error:
            if error.status < 500 or exchange.interruption is not None:
                raise
            self._give_up(error)
            return None
        if answer.status == 200:
            return answer
        await answer.aclose()
        self._give_up(f"its worker answered {answer.status}")
        return None

    async def _next(self) -> Answer:
        self.count += 1
        exchange = self._exchange
        if exchange.abort_was_asked:
            raise AbortAsked
        self._counts.continued += 1
        exchange.excluded_workers.clear()
        exchange.excluded_workers.update(self.excluded)
        task = asyncio.ensure_future(self._call_next(exchange))
        exchange.on_abort(lambda: None if self._is_at_worker else task.cancel())
        try:
            await asyncio.wait([task])
        finally:
            exchange.on_abort(None)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled() and exchange.abort_was_asked:
            raise AbortAsked
        return task.result()

    @property
    def _is_at_worker(self) -> bool:
        return any(attempt.outcome is None and attempt.request_sent for attempt in self._exchange.attempts)

    def _give_up(self, why: object) -> None:
        self._counts.final["no_rest"] += 1
        log.warning("%r is not continued: %s", self._exchange, why)
