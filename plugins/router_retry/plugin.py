"""One more try elsewhere, where nothing can have happened twice."""

from __future__ import annotations

import logging
from collections import Counter
from typing import ClassVar, Final

from router_core import (
    Answer,
    CallNext,
    Exchange,
    NoWorker,
    PluginSettings,
    Router,
    WorkerFault,
    WorkerLost,
    hookimpl,
)
from router_retry.settings import RetrySettings
from router_retry.verdict import Tries, Why

log = logging.getLogger(__name__)

ATTEMPTS_HEADER: Final = b"x-router-attempts"


class Retry:
    """Sends a request to another worker when its worker was never given it; otherwise the failure is told."""

    requires_api: ClassVar[str] = ">=1,<2"
    several_processes: ClassVar[bool] = True
    Settings: ClassVar[type[PluginSettings]] = RetrySettings

    def __init__(self, settings: RetrySettings) -> None:
        self._router: Router | None = None
        self._retries: Counter[Why] = Counter()
        self._suspects = 0

    @hookimpl
    async def startup(self, router: Router) -> None:
        self._router = router

    @hookimpl
    async def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Answer:
        settings: RetrySettings = exchange.settings(self)
        statuses = settings.retry_statuses
        if statuses or settings.retry_suspects:
            await _keep_body(exchange, settings.max_body_bytes)
        tries: Tries | None = None  # as long as nothing fails there is nothing to remember
        failure: WorkerFault | None = None
        while True:
            try:
                answer = await call_next(exchange)
            except NoWorker:
                if failure is None:
                    raise
                raise failure from None
            except WorkerFault as error:
                tries = _one_more(tries, settings)
                self._go_on(exchange, tries, error)
                failure = error
                continue
            if not statuses or answer.status not in statuses:
                return answer
            tries = _one_more(tries, settings)
            if not self._may_drop(exchange, tries):
                return answer
            await answer.aclose()

    @hookimpl
    def response_start(self, exchange: Exchange, answer: Answer) -> None:
        if exchange.attempts:
            answer.headers.set_raw(ATTEMPTS_HEADER, str(len(exchange.attempts)).encode())

    @hookimpl
    def metrics(self) -> str:
        lines = ["# TYPE router_retry_retries_total counter"]
        lines += [f'router_retry_retries_total{{reason="{why}"}} {self._retries[why]}' for why in Why]
        lines += ["# TYPE router_retry_suspects_total counter", f"router_retry_suspects_total {self._suspects}"]
        return "\n".join(lines)

    # ---------------------------------------------------------------------------------------------------- after a try
    def _go_on(self, exchange: Exchange, tries: Tries, error: WorkerFault) -> None:
        """Sees to it that the next try is elsewhere. Raises the error where there is to be none."""
        self._exclude_server(exchange)
        is_loss = isinstance(error, WorkerLost)
        why = tries.after_fault(was_sent=error.request_sent, is_loss=is_loss, can_be_sent=exchange.request.can_be_sent)
        error.details["tried"] = [attempt.worker.url for attempt in exchange.attempts]
        if tries.is_suspect:
            error.details["suspect"] = True
        if is_loss and error.request_sent:
            self._suspects += 1
            log.warning(
                "%r is suspect: its worker was lost while it had the request; %s: %s",
                exchange,
                "it gets one more try" if why is Why.SUSPECT else "it is not tried on another worker",
                error,
            )
        if why is None:
            raise error
        self._count(exchange, why)

    def _may_drop(self, exchange: Exchange, tries: Tries) -> bool:
        """Whether an answer with a status to retry is given up, because somebody else may answer."""
        why = tries.after_status(can_be_sent=exchange.request.can_be_sent)
        if why is None or exchange.worker is None or self._router is None:
            return False
        exchange.excluded_workers.add(exchange.worker)
        if all(worker in exchange.excluded_workers for worker in self._router.workers.ready()):
            return False
        self._count(exchange, why)
        return True

    def _count(self, exchange: Exchange, why: Why) -> None:
        self._retries[why] += 1
        worker = exchange.worker.url if exchange.worker else "none"
        log.info("%r is tried again after %s: %s", exchange, worker, why)

    def _exclude_server(self, exchange: Exchange) -> None:
        """The worker that failed, and the other data-parallel ranks of the same server."""
        failed = exchange.worker
        if failed is None:
            return
        exchange.excluded_workers.add(failed)
        if self._router is not None:
            exchange.excluded_workers.update(
                worker for worker in self._router.workers if worker.base_url == failed.base_url
            )


def _one_more(tries: Tries | None, settings: RetrySettings) -> Tries:
    tries = tries or Tries(settings.max_attempts, settings.retry_suspects)
    tries.made += 1
    return tries


async def _keep_body(exchange: Exchange, max_bytes: int) -> None:
    """Reads a body of declared length whole, so that it can be sent twice; a longer one is streamed and sent once."""
    length = exchange.request.source.length
    if length is not None and length <= max_bytes:
        await exchange.request.body()
