"""Weight versions of workers, requests and sessions, and the pause of dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from router_core import (
    Answer,
    Attempt,
    AttemptWithdrawn,
    CallNext,
    Exchange,
    NoWorker,
    Outcome,
    PluginSettings,
    Reject,
    Router,
    Session,
    StateKey,
    Worker,
    WorkerState,
    hookimpl,
)
from router_weight_version.dispatch import PAUSED
from router_weight_version.eligibility import OWN_TAG, TAG_HEADER, Eligibility
from router_weight_version.everywhere import Part
from router_weight_version.routes import VersionRoutes
from router_weight_version.scan import VersionScanner
from router_weight_version.session_tags import SessionTags
from router_weight_version.settings import WeightVersionSettings
from router_weight_version.version import MAX_DIGITS, parse_version
from router_weight_version.worker_versions import WorkerVersions

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

STAMP_HEADER = b"x-router-weight-version"

DECIDED_IN = StateKey[int]("epoch of the decision")
SENT_TO_VERSION = StateKey[str | None]("weight version of the worker when it was sent")
SCANNER = StateKey[VersionScanner]("version scanner")


class WeightVersion:
    """Keeps requests from workers with older weights than they may have, and holds them while dispatch is paused."""

    requires_api: ClassVar[str] = ">=1,<2"
    several_processes: ClassVar[bool] = True
    Settings: ClassVar[type[PluginSettings]] = WeightVersionSettings

    def __init__(self, settings: WeightVersionSettings) -> None:
        self._settings = settings
        self._eligibility = Eligibility(SessionTags(max_sessions=settings.max_sessions, ttl_s=settings.session_ttl_s))
        self._part = Part(self._eligibility)
        self._is_started = False
        self._withdrawn = 0

    # --------------------------------------------------------------------------------------------- outside a request
    @hookimpl
    async def startup(self, router: Router) -> None:
        settings = self._settings
        versions = WorkerVersions(
            router,
            self._tell_all,
            confirm_recovered=settings.confirm_recovered,
            path=settings.version_path,
            interval_s=settings.ask_interval_s,
            timeout_s=settings.ask_timeout_s,
        )
        for worker in router.workers:
            versions.see(worker, None, worker.state)
        self._eligibility.start(router, versions)
        self._is_started = True

    @hookimpl
    def routes(self) -> Sequence[BaseRoute]:
        return VersionRoutes(self._eligibility, self._settings, self._tell_all).routes()

    async def _tell_all(self, message: tuple[Any, ...]) -> list[Any]:
        return await self._eligibility.router.tell_all(self, message)

    @hookimpl
    async def told(self, message: Sequence[Any]) -> Any:
        return await self._part.hear(*message)

    @hookimpl
    def hand_over(self) -> Any:
        return self._part.hand_over()

    @hookimpl
    def take_over(self, state: Any) -> None:
        self._part.take_over(state)

    @hookimpl
    def worker_changed(self, worker: Worker, old: WorkerState | None, new: WorkerState) -> None:
        if self._is_started:
            self._eligibility.versions.see(worker, old, new)
        if new is WorkerState.REMOVED:
            self._eligibility.dispatch.pauses.forget(worker)

    @hookimpl
    async def session_opened(self, session: Session, body: dict[str, Any]) -> Sequence[str] | None:
        tag = body.get("version_tag")
        if tag is not None:
            _checked_tag(str(tag), "version_tag")
        return None

    @hookimpl
    def describe_session(self, session: Session) -> dict[str, Any] | None:
        served_by = self._eligibility.tags.get(session.id, self._eligibility.router.clock.now())
        return None if served_by is None else {"served_by_version": str(served_by)}

    @hookimpl
    def session_closed(self, session: Session, reason: str) -> None:
        self._eligibility.tags.forget(session.id)

    @hookimpl
    def metrics(self) -> str:
        counters = {
            "too_stale": self._eligibility.too_stale,
            "withdrawn_attempts": self._withdrawn,
            "drained": self._eligibility.drained,
            "leases_ended": self._eligibility.dispatch.leases_ended,
        }
        pauses = self._eligibility.dispatch.pauses
        gauges = {"paused": int(pauses.is_paused(None)), "epoch": pauses.epoch, "sessions": len(self._eligibility.tags)}
        lines = [_metric(f"{name}_total", "counter", value) for name, value in counters.items()]
        lines += [_metric(name, "gauge", value) for name, value in gauges.items()]
        lines += [f"# MERGE router_weight_version_{name} max" for name in ("paused", "epoch")]
        return "\n".join(lines)

    # ------------------------------------------------------------------------------------------------ during a request
    @hookimpl
    def request_start(self, exchange: Exchange) -> None:
        given = exchange.request.headers.get_all(TAG_HEADER)
        if not given and exchange.identity.version_tag is not None:
            given = [exchange.identity.version_tag]
        if given:
            exchange.state[OWN_TAG] = max(_checked_tag(text, TAG_HEADER) for text in given)
        if given or exchange.session_id is not None:
            self._eligibility.tell_tag(exchange)

    @hookimpl
    async def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Answer:
        pauses = self._eligibility.dispatch.pauses
        while True:
            while pauses.epoch and pauses.is_paused(None):
                await self._eligibility.router.holds.hold(exchange, PAUSED, reason="the router is paused")
            try:
                return await call_next(exchange)
            except NoWorker:
                if not pauses.is_paused(None):
                    raise

    @hookimpl
    def filter_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> Sequence[Worker] | None:
        exchange.state[DECIDED_IN] = self._eligibility.dispatch.pauses.epoch
        eligibility = self._eligibility
        if exchange.session_id is not None:
            eligibility.unclaim(exchange)
        settings: WeightVersionSettings = exchange.settings(self)
        is_bounded = settings.max_staleness is not None
        newest = eligibility.check_staleness(exchange, settings.max_staleness) if is_bounded else None
        tag = eligibility.tag_of(exchange)
        if eligibility.is_open(tag, newest):
            return None
        kept = []
        for worker in workers:
            found = eligibility.why_out(worker, tag, newest, settings.max_staleness)
            if found is None:
                kept.append(worker)
            else:
                reason, will_pass = found
                exchange.leave_out(worker, reason, for_now=will_pass or settings.hold_for_version)
        return kept

    @hookimpl
    def attempt_start(self, exchange: Exchange, attempt: Attempt) -> None:
        tag = self._eligibility.tag_of(exchange)
        if tag is not None:
            attempt.request.headers.set(TAG_HEADER, str(tag))
        attempt.before_send(lambda: self._at_send(exchange, attempt))

    @hookimpl
    def response_start(self, exchange: Exchange, answer: Answer) -> None:
        attempt = exchange.attempts[-1] if exchange.attempts else None
        if answer.error_code is None and attempt is not None and attempt.status is not None:
            version = exchange.state.get(SENT_TO_VERSION)
            if version is not None and version.isascii() and version.isprintable():
                answer.headers.set_raw(STAMP_HEADER, version.encode())
            if answer.status < 400:
                self._eligibility.serve(exchange, version)
            if self._settings.learn_max_bytes and attempt.status == 200 and not answer.is_encoded:
                exchange.state[SCANNER] = VersionScanner(self._settings.learn_max_bytes)
        tag = self._eligibility.tag_of(exchange)
        if tag is not None:
            answer.headers.set(TAG_HEADER, str(tag))

    @hookimpl
    def response_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        scanner = exchange.state.get(SCANNER)
        if scanner is None:
            return
        found = scanner.feed(chunk)
        if found is not None:
            self._eligibility.versions.learn(exchange.attempts[-1], found)
        if found is not None or scanner.is_done:
            exchange.state.pop(SCANNER)

    @hookimpl
    def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
        if exchange.session_id is not None:
            self._eligibility.unclaim(exchange)
        if uploading := self._eligibility.dispatch.uploading:
            uploading.difference_update(exchange.attempts)

    def _at_send(self, exchange: Exchange, attempt: Attempt) -> None:
        """The last moment before the first byte: the decision must still hold. Raises AttemptWithdrawn."""
        worker, eligibility = attempt.worker, self._eligibility
        max_staleness = exchange.settings(self).max_staleness
        newest = None if max_staleness is None else eligibility.newest()
        tag = eligibility.tag_of(exchange)
        pauses = eligibility.dispatch.pauses
        if pauses.epoch and pauses.is_void(exchange.state[DECIDED_IN], worker):
            self._withdraw("dispatch was paused")
        is_open = eligibility.is_open(tag, newest)
        if not is_open and (out := eligibility.why_out(worker, tag, newest, max_staleness)) is not None:
            self._withdraw(out[0])
        exchange.state[SENT_TO_VERSION] = worker.weight_version
        eligibility.claim(exchange, worker.weight_version)
        if attempt.request.ready_body is None:
            eligibility.dispatch.uploading.add(attempt)

    def _withdraw(self, why: str) -> None:
        self._withdrawn += 1
        raise AttemptWithdrawn(why)


def _checked_tag(text: str, param: str) -> int:
    tag = parse_version(text.strip())
    if tag is None:
        raise Reject(
            400,
            "bad_version_tag",
            f"{param} must be a number of 1 to {MAX_DIGITS} decimal digits, not {text[:64]!r}",
            param,
        )
    return tag


def _metric(name: str, kind: str, value: int) -> str:
    return f"# TYPE router_weight_version_{name} {kind}\nrouter_weight_version_{name} {value}"
