"""Admits no more than the workers can take; the rest waits in the router."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import ClassVar

from router_admission.limits import Full, Limits, first_by_version, kv_usage_in
from router_admission.reservation import REFUSED, Asked, Verdict, verdict_of
from router_admission.settings import AdmissionSettings
from router_core import (
    Attempt,
    AttemptWithdrawn,
    Exchange,
    PluginSettings,
    Router,
    Scores,
    StateKey,
    Worker,
    hookimpl,
)

log = logging.getLogger(__name__)

ASKED = StateKey[Asked]("reservations of a worker")


class Admission:
    """Bounds in flight, a bound of KV use, an optional reserve call, and the order of workers by version or room."""

    requires_api: ClassVar[str] = ">=1,<2"
    several_processes: ClassVar[bool] = True
    Settings: ClassVar[type[PluginSettings]] = AdmissionSettings

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        self._limits = Limits(settings.max_inflight_per_worker, settings.max_inflight, settings.max_kv_usage)
        self._is_bounded = self._limits.is_any or bool(settings.reserve_url)
        self._router: Router | None = None
        self._verdicts: Counter[Verdict] = Counter()

    @property
    def router(self) -> Router:
        if self._router is None:
            raise RuntimeError("the router has not started")
        return self._router

    @hookimpl
    async def startup(self, router: Router) -> None:
        self._router = router
        if self._settings.reserve_url or self._settings.max_kv_usage is not None:
            router.spawn(self._look_again(router), name="admission looks again")

    async def _look_again(self, router: Router) -> None:
        """Statistics grow old and refusals end with time alone: whoever waits has a turn now and then."""
        while True:
            await router.clock.sleep(self._settings.reserve_retry_s)
            router.holds.wake_for_workers()

    # ------------------------------------------------------------------------------------------------------- selection
    @hookimpl
    def filter_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> Sequence[Worker] | None:
        if not self._is_bounded:
            return None
        kept = []
        is_full = self._is_router_full()
        for worker in workers:
            reason = Full.ROUTER if is_full else self._why_out(exchange, worker)
            if reason is None:
                kept.append(worker)
            else:
                exchange.leave_out(worker, str(reason), for_now=True)
        return kept

    def _is_router_full(self) -> bool:
        bound = self._limits.max_inflight
        return bound is not None and sum(worker.inflight for worker in self.router.workers) >= bound

    def _why_out(self, exchange: Exchange, worker: Worker) -> str | None:
        if (full := self._limits.why_full(worker.inflight, self._kv_usage(worker))) is not None:
            return full
        if self._settings.reserve_url and (reason := self._asked(worker).why_not_now(self.router.clock.now())):
            return reason
        return self._who_waits(exchange, worker)

    def _who_waits(self, exchange: Exchange, worker: Worker) -> Full | None:
        """Somebody waits for room at this worker: a request that comes now goes behind."""
        holds = self.router.holds
        if exchange.hold_place is not None or not len(holds):
            return None
        return next((full for full in Full if holds.is_awaited(worker, full)), None)

    @hookimpl
    def score_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> Scores | None:
        if self._settings.sort == "version":
            tag = exchange.identity.version_tag or exchange.request.headers.get("x-version-tag")
            first = first_by_version({worker: worker.weight_version for worker in workers}, tag)
            return dict.fromkeys(first, 1.0)
        if self._settings.sort == "reserve":
            return {worker: self._limits.reserve(worker.inflight, self._kv_usage(worker)) for worker in workers}
        return None

    def _kv_usage(self, worker: Worker) -> float | None:
        if not worker.stats or self.router.clock.now() - worker.stats_at > self._settings.stats_ttl_s:
            return None
        return kv_usage_in(worker.stats, self._settings.kv_keys)

    # ----------------------------------------------------------------------------------------------------- reservation
    @hookimpl
    def attempt_start(self, exchange: Exchange, attempt: Attempt) -> Awaitable[None] | None:
        return self._admit(exchange, attempt) if self._settings.reserve_url else None

    async def _admit(self, exchange: Exchange, attempt: Attempt) -> None:
        asked = self._asked(attempt.worker)
        asked.under_way += 1
        try:
            verdict = await self._reserve(exchange, attempt.worker)
        finally:
            asked.under_way -= 1
        self._verdicts[verdict] += 1
        if verdict is Verdict.REFUSED or (verdict is Verdict.FAILED and self._settings.reserve_on_failure == "hold"):
            asked.refused_until = self.router.clock.now() + self._settings.reserve_retry_s
            raise AttemptWithdrawn(REFUSED)
        self.router.holds.wake_for_workers()

    async def _reserve(self, exchange: Exchange, worker: Worker) -> Verdict:
        url, timeout_s = self._settings.reserve_url, self._settings.reserve_timeout_s
        body = json.dumps(
            {
                "exchange_id": exchange.id,
                "session_id": exchange.session_id,
                "worker_id": worker.id,
                "worker_url": worker.url,
                "dp_rank": worker.dp_rank,
                "target": exchange.target,
                "version_tag": exchange.identity.version_tag,
                "body_bytes": exchange.request.source.length,
            }
        ).encode()
        headers, control = {"content-type": "application/json"}, self.router.control
        if url.startswith("/"):
            answer = await control.call(worker, "POST", url, timeout_s=timeout_s, body=body, headers=headers)
        else:
            answer = await control.call_url(url, "POST", timeout_s=timeout_s, body=body, headers=headers)
        verdict = verdict_of(answer.status, answer.json())
        if verdict is Verdict.FAILED:
            log.warning("the reserve call for %r at %s has no answer: %s", exchange, worker.url, answer.error)
        return verdict

    def _asked(self, worker: Worker) -> Asked:
        asked = worker.state_of.get(ASKED)
        if asked is None:
            asked = worker.state_of[ASKED] = Asked(self._settings.max_reserve_calls)
        return asked

    @hookimpl
    def metrics(self) -> str:
        name = "router_admission_reservations_total"
        lines = [f'{name}{{verdict="{verdict}"}} {self._verdicts[verdict]}' for verdict in Verdict]
        return "\n".join([f"# TYPE {name} counter", *lines])
