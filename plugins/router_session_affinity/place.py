"""Where a session's next turn goes: to its own worker, away from an overloaded one, or to a place for a new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from router_core import Worker
from router_session_affinity.ring import HashRing

STAYS, LEAVES, PLACED = 1.0, 1.0, 0.5
"""Scores: of the own worker, of the one taken instead of an overloaded one, and of a place for a new session, which
other plugins may outvote."""


@dataclass(frozen=True, slots=True)
class Gate:
    """When affinity gives way to load. Both must be exceeded: ``absolute`` requests above the least loaded worker's,
    and ``relative`` times as many."""

    absolute: int
    relative: float

    def is_overloaded(self, worker: Worker, workers: Sequence[Worker]) -> bool:
        """``workers`` are those that could take the request."""
        inflight = worker.inflight
        if inflight <= self.absolute:
            return False  # the common case: no need to look for the least loaded one
        least = min(other.inflight for other in workers)
        return inflight > least + self.absolute and inflight > least * self.relative


@dataclass(slots=True)
class Place:
    """A worker, how good it is, and why it is not the session's own: ``stays``, ``lost`` or ``overloaded``."""

    worker: Worker
    score: float
    why: str


def place(own: Worker | None, workers: Sequence[Worker], gate: Gate, sessions_of: Callable[[Worker], int]) -> Place:
    """The place of a session that belongs to ``own``, or to nobody yet, among the workers that may take it.

    A new session goes where the fewest sessions are, and among those the fewest requests in flight.
    """
    if own is None or own not in workers:
        chosen = min(workers, key=lambda worker: (sessions_of(worker), worker.inflight, worker.last_pick))
        return Place(chosen, PLACED, "lost")
    if gate.is_overloaded(own, workers):
        return Place(min(workers, key=_load), LEAVES, "overloaded")
    return Place(own, STAYS, "stays")


def place_by_hash(
    key: str, workers: Sequence[Worker], gate: Gate, ring: HashRing, by_name: Mapping[str, Worker]
) -> Place:
    """The first worker on the ring that may take it and is not overloaded; ``by_name`` are the members of the ring."""
    for name in ring.walk(key):
        worker = by_name.get(name)
        if worker is not None and worker in workers and not gate.is_overloaded(worker, workers):
            return Place(worker, STAYS, "stays")
    return Place(min(workers, key=_load), PLACED, "lost")


def _load(worker: Worker) -> tuple[int, int]:
    return worker.inflight, worker.last_pick
