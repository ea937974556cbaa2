"""Which workers may serve an exchange now: its tag, its session's version, staleness and pauses together."""

from __future__ import annotations

import dataclasses

from router_core import KEPT_VERSION, Exchange, Reject, Router, StateKey, Worker
from router_weight_version.dispatch import Dispatch
from router_weight_version.session_tags import SessionTags
from router_weight_version.version import newest_of, parse_version, why_too_old
from router_weight_version.worker_versions import WorkerVersions

TAG_HEADER = "x-version-tag"

OWN_TAG = StateKey[int]("own version tag")


class Eligibility:
    """The state of one plugin instance, for its hooks and its routes."""

    def __init__(self, tags: SessionTags) -> None:
        self.dispatch = Dispatch()
        self.tags = tags
        self.too_stale = 0
        self.drained = 0
        self._router: Router | None = None
        self._versions: WorkerVersions | None = None

    def start(self, router: Router, versions: WorkerVersions) -> None:
        """The router starts."""
        self._router, self._versions = router, versions
        self.dispatch.start(router)

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

    def newest(self) -> int | None:
        """The newest version of the pool."""
        return newest_of(worker.weight_version for worker in self.router.workers)

    def is_open(self, tag: int | None, newest: int | None) -> bool:
        """Whether nothing at all can be against any worker, so that nobody need look at one."""
        if tag is not None or newest is not None:
            return False
        pauses = self.dispatch.pauses
        return not (pauses.epoch and pauses.is_any) and not self.versions.is_any_unconfirmed

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

    # ------------------------------------------------------------------------------------------------- of an exchange
    def tag_of(self, exchange: Exchange) -> int | None:
        """The oldest version that may serve the exchange: its own tag, and what served its session."""
        own = exchange.state.get(OWN_TAG)
        if exchange.session_id is None:
            return own
        served = self.tags.get(exchange.session_id, self.router.clock.now())
        return served if own is None else own if served is None else max(own, served)

    def tell_tag(self, exchange: Exchange) -> None:
        """Shows the tag to other plugins."""
        tag = self.tag_of(exchange)
        if tag is not None:
            exchange.identity = dataclasses.replace(exchange.identity, version_tag=str(tag))

    def claim(self, exchange: Exchange, version: str | None) -> None:
        """The exchange is sent to a worker of this version: nothing older for its session's other turns meanwhile.

        What was begun by another worker keeps the version of its first token.
        """
        if exchange.session_id is None:
            return
        number = parse_version(exchange.state.get(KEPT_VERSION, version))
        if number is not None:
            self.tags.claim(exchange.session_id, exchange.id, number, self.router.clock.now())

    def serve(self, exchange: Exchange, version: str | None) -> None:
        """The exchange is answered, by a worker of this version; its session's is that of the first token."""
        if exchange.session_id is None:
            return
        number = parse_version(exchange.state.get(KEPT_VERSION, version))
        if number is not None:
            self.tags.serve(exchange.session_id, number, self.router.clock.now())

    def unclaim(self, exchange: Exchange) -> None:
        if exchange.session_id is not None:
            self.tags.unclaim(exchange.session_id, exchange.id)

    def check_staleness(self, exchange: Exchange, max_staleness: int | None) -> int | None:
        """The newest version of the pool where staleness is bounded. Raises Reject for what began too long ago.

        That is a session, by the version that first served it, or an answer that was aborted, by its first token's.
        """
        if max_staleness is None or (newest := self.newest()) is None:
            return None
        began = {"the answer": parse_version(exchange.state.get(KEPT_VERSION))}
        if exchange.session_id is not None:
            served = self.tags.get(exchange.session_id, self.router.clock.now())
            began[f"session {exchange.session_id!r}"] = served
        for what, version in began.items():
            if version is not None and newest - version > max_staleness:
                self.too_stale += 1
                raise Reject(
                    409,
                    "too_stale",
                    f"{what} began with weight version {version}, the newest is {newest}; "
                    f"at most {max_staleness} between them are allowed (plugins.weight_version.max_staleness)",
                    TAG_HEADER,
                )
        return newest

    def drain(self, older_than: int, *, with_untagged: bool) -> list[Exchange]:
        """Ends the held requests that belong to an older version, and with ``with_untagged`` those of none."""
        drained = []
        for held in self.router.holds:
            tag = self.tag_of(held.exchange)
            if held.exchange.interruption is None and (with_untagged if tag is None else tag < older_than):
                drained.append(held.exchange)
                whose = "it has no version tag" if tag is None else f"it belongs to weight version {tag}"
                why = f"the request was dropped from the queue: {whose}, older than {older_than}"
                held.exchange.interrupt(Reject(409, "drained", why, TAG_HEADER))
        self.drained += len(drained)
        return drained
