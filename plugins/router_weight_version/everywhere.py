"""What a call means in every process of the router: each does its part, and the route adds the answers up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from router_core import Reject, Worker, checked_version, update_workers
from router_weight_version.eligibility import Eligibility


class Part:
    """The part of this process; a message is a word and its arguments, in plain values."""

    def __init__(self, eligibility: Eligibility) -> None:
        self._eligibility = eligibility

    async def hear(self, what: str, *given: Any) -> Any:
        dispatch, holds = self._eligibility.dispatch, self._eligibility.router.holds
        if what == "pause":
            ids, until, wait_s = given
            epoch = dispatch.pause(self._workers(ids), until)
            return {"epoch": epoch, "left": await dispatch.wait_handed_over(wait_s), "held": len(holds)}
        if what == "resume":
            return {"was_paused": dispatch.resume(self._workers(given[0])), "held": len(holds)}
        if what == "drain":
            drained = len(self._eligibility.drain(given[0], with_untagged=given[1]))
            return {"drained": drained, "held": len(holds) - drained}
        if what == "state":
            return self.state(given[0])
        if what == "learn":
            return self._eligibility.versions.hear(*given)
        return {
            "queue": self._queue(given[0]),
            "total": len(holds),
            "by_kind": holds.by_kind(),
            "oldest_s": holds.oldest_s(),
        }

    def hand_over(self) -> Any:
        """The pauses, for another process or the next generation."""
        return self._eligibility.dispatch.pauses.described(lambda worker: worker.id)

    def take_over(self, state: Any) -> None:
        self._eligibility.dispatch.adopt(state, self._eligibility.router.workers.get)

    def state(self, body: Any) -> tuple[int, dict[str, Any]]:
        """What a coordinator states of workers."""
        versions = self._eligibility.versions
        return update_workers(
            body,
            self._eligibility.router.workers,
            checked_versions,
            lambda worker, stated: versions.state(worker, *stated),
        )

    def _workers(self, ids: Sequence[str]) -> list[Worker]:
        found = (self._eligibility.router.workers.get(each) for each in ids)
        return [worker for worker in found if worker is not None]

    def _queue(self, limit: int) -> list[dict[str, Any]]:
        now = self._eligibility.router.clock.now()
        return [
            {
                "exchange": held.exchange.id,
                "session_id": held.exchange.session_id,
                "version_tag": held.exchange.identity.version_tag,
                "kind": held.kind,
                "reason": held.reason,
                "held_s": round(now - held.since, 3),
            }
            for held in list(self._eligibility.router.holds)[:limit]
        ]


def checked_versions(entry: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The versions of one entry, stated and pending. Raises Reject (400)."""
    version, pending = (
        checked_version(entry[name], name) if entry.get(name) is not None else None
        for name in ("weight_version", "pending_weight_version")
    )
    if version is None and pending is None:
        raise Reject(400, "bad_value", "give the worker's weight_version (or pending_weight_version)", "weight_version")
    return version, pending
