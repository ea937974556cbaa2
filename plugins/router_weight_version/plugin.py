"""Weight versions of workers, requests and sessions, and the pause of dispatch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

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
    per_exchange,
)
from router_weight_version.dispatch import PAUSED, Dispatch
from router_weight_version.routes import VersionRoutes
from router_weight_version.scan import VersionScanner
from router_weight_version.session_tags import SessionTags
from router_weight_version.version import MAX_DIGITS, newest_of, parse_version, why_too_old
from router_weight_version.worker_versions import WorkerVersions

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

TAG_HEADER = "x-version-tag"
STAMP_HEADER = "x-router-weight-version"

OWN_TAG = StateKey[int]("own version tag")
DECIDED_IN = StateKey[int]("epoch of the decision")
SENT_TO_VERSION = StateKey[str | None]("weight version of the worker when it was sent")
SCANNER = StateKey[VersionScanner]("version scanner")


class WeightVersion:
    """Keeps requests from workers with older weights than they may have, and holds them while dispatch is paused."""

    requires_api = ">=1,<2"
    several_processes = True

    class Settings(PluginSettings):
        max_staleness: int | None = per_exchange(None, ge=0)
        """How many versions behind the newest of the pool a worker may be, and the version that first served a session
        (its later turns are refused then, 409 ``too_stale``). None: no bound."""
        hold_for_version: bool = per_exchange(True)
        """Whether a request waits for a worker that is fresh enough; else it is refused (503) at once, unless a
        pending version will do."""
        confirm_recovered: bool = True
        """Whether a worker that had a known version and comes back (from quarantine, or registered again without a
        version) gets requests only once its version was stated: by the worker, or by the coordinator."""
        version_path: str = Field(default="/get_model_info", pattern=r"^(/.*)?$")
        """What a worker is asked for its ``weight_version``; empty: it is never asked."""
        ask_interval_s: float = Field(default=2.0, gt=0)
        """Seconds between two questions to a worker whose version is not confirmed, or pending."""
        ask_timeout_s: float = Field(default=5.0, gt=0)
        """Seconds that a worker has to answer such a question."""
        learn_max_bytes: int = Field(default=1 << 20, ge=0)
        """Bytes of an answer that are looked through for ``weight_version``; 0 learns nothing from answers."""
        pause_ttl_s: float = Field(default=600.0, gt=0)
        """Seconds after which a pause ends by itself, unless the call says otherwise."""
        max_pause_ttl_s: float = Field(default=3600.0, gt=0)
        """Longest lease in seconds that a call may ask for."""
        pause_wait_s: float = Field(default=30.0, gt=0)
        """Seconds that ``?wait=true`` waits, unless the call says otherwise."""
        session_ttl_s: float = Field(default=3600.0, gt=0)
        """Seconds without a turn after which a session's version is forgotten."""
        max_sessions: int = Field(default=100_000, ge=1)
        """Most sessions whose version is kept; one more forgets the longest unused."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.dispatch = Dispatch()
        self._tags = SessionTags(max_sessions=settings.max_sessions, ttl_s=settings.session_ttl_s)
        self._router: Router | None = None
        self._versions: WorkerVersions | None = None
        self._routes = VersionRoutes(self)
        self._too_stale = 0
        self._withdrawn = 0
        self._drained = 0

    # --------------------------------------------------------------------------------------------- outside a request
    @hookimpl
    async def startup(self, router: Router) -> None:
        self._router = router
        settings = self.settings
        self._versions = WorkerVersions(
            router,
            lambda message: router.tell_all(self, message),
            confirm_recovered=settings.confirm_recovered,
            path=settings.version_path,
            interval_s=settings.ask_interval_s,
            timeout_s=settings.ask_timeout_s,
        )
        for worker in router.workers:
            self._versions.see(worker, None, worker.state)
        self.dispatch.start(router)

    @hookimpl
    async def told(self, message: Sequence[Any]) -> Any:
        return await self._routes.hear(*message)

    @hookimpl
    def hand_over(self) -> Any:
        return self.dispatch.pauses.described(lambda worker: worker.id)

    @hookimpl
    def take_over(self, state: Any) -> None:
        self.dispatch.adopt(state, lambda worker_id: self.router.workers.get(worker_id))

    def workers_of(self, ids: Sequence[str]) -> list[Worker]:
        """The registered workers of these ids."""
        return [worker for each in ids if (worker := self.router.workers.get(each)) is not None]

    @hookimpl
    def routes(self) -> Sequence[BaseRoute]:
        return self._routes.routes()

    @hookimpl
    def worker_changed(self, worker: Worker, old: WorkerState | None, new: WorkerState) -> None:
        if self._versions is not None:
            self._versions.see(worker, old, new)
        if new is WorkerState.REMOVED:
            self.dispatch.pauses.forget(worker)

    @hookimpl
    async def session_opened(self, session: Session, body: dict[str, Any]) -> Sequence[str] | None:
        tag = body.get("version_tag")
        if tag is not None:
            _checked_tag(str(tag), "version_tag")
        return None

    @hookimpl
    def describe_session(self, session: Session) -> dict[str, Any] | None:
        served_by = self._tags.get(session.id, self.router.clock.now())
        return None if served_by is None else {"served_by_version": str(served_by)}

    @hookimpl
    def session_closed(self, session: Session, reason: str) -> None:
        self._tags.forget(session.id)

    @hookimpl
    def metrics(self) -> str:
        counters = {
            "too_stale": self._too_stale,
            "withdrawn_attempts": self._withdrawn,
            "drained": self._drained,
            "leases_ended": self.dispatch.leases_ended,
        }
        pauses = self.dispatch.pauses
        gauges = {"paused": int(pauses.is_paused(None)), "epoch": pauses.epoch, "sessions": len(self._tags)}
        lines = [_metric(f"{name}_total", "counter", value) for name, value in counters.items()]
        lines += [_metric(name, "gauge", value) for name, value in gauges.items()]
        lines += [f"# MERGE router_weight_version_{name} max" for name in ("paused", "epoch")]
        return "\n".join(lines)

    @property
    def router(self) -> Router:
        if self._router is None:
            raise RuntimeError("the router has not started")
        return self._router

    @property
    def versions(self) -> WorkerVersions:
        if self._versions is None:
            raise RuntimeError("the router has not started")
        return self._versions

    # ------------------------------------------------------------------------------------------------ during a request
    @hookimpl
    async def request_start(self, exchange: Exchange) -> None:
        given = exchange.request.headers.get_all(TAG_HEADER)
        if not given and exchange.identity.version_tag is not None:
            given = [exchange.identity.version_tag]
        if given:
            exchange.state[OWN_TAG] = max(_checked_tag(text, TAG_HEADER) for text in given)
        self._tell_tag(exchange)

    @hookimpl
    async def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Answer:
        while True:
            while self.dispatch.pauses.is_paused(None):
                await self.router.holds.hold(exchange, PAUSED, reason="the router is paused")
            try:
                return await call_next(exchange)
            except NoWorker:
                if not self.dispatch.pauses.is_paused(None):
                    raise

    @hookimpl
    def filter_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> Sequence[Worker] | None:
        exchange.state[DECIDED_IN] = self.dispatch.pauses.epoch
        self._unclaim(exchange)
        settings: WeightVersion.Settings = exchange.settings(self)
        newest = self._check_staleness(exchange, settings.max_staleness)
        tag = self._tag_of(exchange)
        if tag is None and newest is None and not self.dispatch.pauses.is_any and not self.versions.is_any_unconfirmed:
            return None
        kept = []
        for worker in workers:
            found = self.why_out(worker, tag, newest, settings.max_staleness)
            if found is None:
                kept.append(worker)
            else:
                reason, will_pass = found
                exchange.leave_out(worker, reason, for_now=will_pass or settings.hold_for_version)
        return kept

    @hookimpl
    async def attempt_start(self, exchange: Exchange, attempt: Attempt) -> None:
        tag = self._tag_of(exchange)
        if tag is not None:
            attempt.request.headers.set(TAG_HEADER, str(tag))
        attempt.before_send(lambda: self._at_send(exchange, attempt))

    @hookimpl
    async def response_start(self, exchange: Exchange, answer: Answer) -> None:
        attempt = exchange.attempts[-1] if exchange.attempts else None
        if answer.error_code is None and attempt is not None and attempt.status is not None:
            version = exchange.state.get(SENT_TO_VERSION)
            if version is not None and version.isascii():
                answer.headers.set(STAMP_HEADER, version)
            number = parse_version(version)
            if exchange.session_id is not None and number is not None and answer.status < 400:
                self._tags.serve(exchange.session_id, number, self.router.clock.now())
            if self.settings.learn_max_bytes and attempt.status == 200 and _is_plain(answer):
                exchange.state[SCANNER] = VersionScanner(self.settings.learn_max_bytes)
        tag = self._tag_of(exchange)
        if tag is not None:
            answer.headers.set(TAG_HEADER, str(tag))

    @hookimpl
    def response_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        scanner = exchange.state.get(SCANNER)
        if scanner is None:
            return
        found = scanner.feed(chunk)
        if found is not None:
            self.versions.learn(exchange.attempts[-1], found)
        if found is not None or scanner.is_done:
            exchange.state.pop(SCANNER)

    @hookimpl
    def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
        self._unclaim(exchange)
        self.dispatch.uploading.difference_update(exchange.attempts)

    # ------------------------------------------------------------------------------------------------------- decisions
    def why_out(
        self, worker: Worker, tag: int | None, newest: int | None, max_staleness: int | None
    ) -> tuple[str, bool] | None:
        """Why a worker gets no request of this tag, and whether that will pass by itself; None: it may."""
        if self.dispatch.pauses.is_paused(None):
            return "the router is paused", True
        if self.dispatch.pauses.is_paused(worker):
            return "the worker is paused", True
        if not self.versions.is_confirmed(worker):
            return "its weight version is not confirmed since it came back", True
        return why_too_old(
            worker.weight_version, worker.pending_weight_version, tag=tag, newest=newest, max_staleness=max_staleness
        )

    def drain(self, older_than: int, *, with_untagged: bool) -> list[Exchange]:
        """Ends the held requests that belong to an older version, and with ``with_untagged`` those of none."""
        drained = []
        for held in self.router.holds:
            tag = self._tag_of(held.exchange)
            if held.exchange.interruption is None and (with_untagged if tag is None else tag < older_than):
                drained.append(held.exchange)
                whose = "it has no version tag" if tag is None else f"it belongs to weight version {tag}"
                why = f"the request was dropped from the queue: {whose}, older than {older_than}"
                held.exchange.interrupt(Reject(409, "drained", why, TAG_HEADER))
        self._drained += len(drained)
        return drained

    def newest(self) -> int | None:
        """The newest version of the pool."""
        return newest_of(worker.weight_version for worker in self.router.workers)

    def _tag_of(self, exchange: Exchange) -> int | None:
        """The oldest version that may serve the exchange: its own tag, and what served its session."""
        own = exchange.state.get(OWN_TAG)
        if exchange.session_id is None:
            return own
        served = self._tags.get(exchange.session_id, self.router.clock.now())
        return served if own is None else own if served is None else max(own, served)

    def _unclaim(self, exchange: Exchange) -> None:
        if exchange.session_id is not None:
            self._tags.unclaim(exchange.session_id, exchange.id)

    def _tell_tag(self, exchange: Exchange) -> None:
        """Shows the tag to other plugins."""
        tag = self._tag_of(exchange)
        if tag is not None:
            exchange.identity = dataclasses.replace(exchange.identity, version_tag=str(tag))

    def _check_staleness(self, exchange: Exchange, max_staleness: int | None) -> int | None:
        """The newest version of the pool where staleness is bounded. Raises Reject for a session that is too stale."""
        if max_staleness is None:
            return None
        newest = self.newest()
        if newest is None or exchange.session_id is None:
            return newest
        served = self._tags.get(exchange.session_id, self.router.clock.now())
        if served is not None and newest - served > max_staleness:
            self._too_stale += 1
            raise Reject(
                409,
                "too_stale",
                f"session {exchange.session_id!r} began with weight version {served}, the newest is {newest}; "
                f"at most {max_staleness} between them are allowed (plugins.weight_version.max_staleness)",
                TAG_HEADER,
            )
        return newest

    def _at_send(self, exchange: Exchange, attempt: Attempt) -> None:
        """The last moment before the first byte: the decision must still hold. Raises AttemptWithdrawn."""
        worker = attempt.worker
        if self.dispatch.pauses.is_void(exchange.state[DECIDED_IN], worker):
            self._withdraw("dispatch was paused")
        settings: WeightVersion.Settings = exchange.settings(self)
        newest = None if settings.max_staleness is None else self.newest()
        if (out := self.why_out(worker, self._tag_of(exchange), newest, settings.max_staleness)) is not None:
            self._withdraw(out[0])
        exchange.state[SENT_TO_VERSION] = worker.weight_version
        number = parse_version(worker.weight_version)
        if exchange.session_id is not None and number is not None:
            self._tags.claim(exchange.session_id, exchange.id, number, self.router.clock.now())
        if attempt.request.ready_body is None:
            self.dispatch.uploading.add(attempt)

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


def _is_plain(answer: Answer) -> bool:
    """Whether its bytes can be looked through."""
    return (answer.headers.get("content-encoding") or "identity").lower() == "identity"
