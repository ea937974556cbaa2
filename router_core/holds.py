"""Requests that wait without costing a worker: paused, not admitted, or none may take them yet."""

from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from router_core.clock import Clock
from router_core.deadline import within
from router_core.errors import Reject
from router_core.types import Exchange, Worker

NO_WORKER_YET = "no_worker_yet"
"""The kind of a hold that waits for a worker."""
MAX_AT_ONCE_BITS = 6
"""At most 2 to this power get their turn in one pass of the event loop."""


@dataclass(eq=False, slots=True)
class Held:
    """One request that waits."""

    exchange: Exchange
    kind: str
    """What sort of thing it waits for, in one word of few."""
    reason: str
    """The same for people."""
    since: float
    """Clock time (s) at which this wait began."""
    turn: asyncio.Future[None]
    key: tuple[float, int] = field(init=False)

    def __post_init__(self) -> None:
        self.key = (self.exchange.hold_order, self.exchange.hold_place or 0)


@dataclass(frozen=True, slots=True)
class _WorkerLane:
    """Those that wait for the same workers, out for the same reasons."""

    waits_for: frozenset[tuple[Worker, str]]


class _Lane:
    """Those that wait for the same, in their order; ``round`` is the newest wake, ``looks`` how often it went well."""

    __slots__ = ("held", "is_scheduled", "looks", "round")

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.round = 0
        self.looks = 0
        self.is_scheduled = False

    def remove(self, held: Held) -> None:
        del self.held[bisect_left(self.held, held.key, key=lambda other: other.key)]


class HoldQueue:
    """Holds requests in lanes; who waits for the same is in one lane and goes in order: by ``hold_order``, then FIFO.

    A wake gives the first of a lane its turn: it tries, and gets through or holds again, at its old place. Once it got
    through the next ones have theirs. Nothing is polled. Bounded in number and in the time that an exchange is held
    all in all; a client that leaves is gone from the queue at once.
    """

    def __init__(self, clock: Clock, *, max_requests: int, timeout_s: float) -> None:
        self._clock = clock
        self._max_requests = max_requests
        self._timeout_s = timeout_s
        self._lanes: dict[Hashable, _Lane] = {}
        self._places = itertools.count(1)
        self._rounds = itertools.count(1)
        self._count = 0
        self._is_closed = False
        self.held_total = 0
        """Requests held so far."""
        self.refused_total = 0
        """Requests refused because the queue was full."""
        self.timed_out_total = 0
        """Requests that waited too long."""

    # ------------------------------------------------------------------------------------------------------ looking
    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Held]:
        """Everyone who waits, the longest first."""
        return iter(sorted((held for lane in self._lanes.values() for held in lane.held), key=lambda held: held.since))

    def by_kind(self) -> dict[str, int]:
        """How many wait, for each kind."""
        return dict(Counter(held.kind for lane in self._lanes.values() for held in lane.held))

    def oldest_s(self) -> float:
        """Seconds since the longest wait began; 0 if nobody waits."""
        begun = [held.since for lane in self._lanes.values() for held in lane.held]
        return self._clock.now() - min(begun) if begun else 0.0

    def is_awaited(self, worker: Worker, reason: str) -> bool:
        """Whether somebody waits for this worker, left out for now for this reason: a newcomer goes behind him."""
        wanted = (worker, reason)
        return any(isinstance(key, _WorkerLane) and wanted in key.waits_for for key in self._lanes)

    # ------------------------------------------------------------------------------------------------------ waiting
    async def hold(
        self,
        exchange: Exchange,
        kind: str,
        *,
        lane: Hashable | None = None,
        reason: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Waits until a `wake` of ``lane`` (by default ``kind``) gives this exchange its turn; then look again.

        Nothing may be awaited between seeing that it must wait and the call, else a wake is missed. ``timeout_s``
        bounds all the waiting of the exchange ([router] hold_timeout_s by default). Raises Reject (503).
        """
        name = kind if lane is None else lane
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        held = self._enter(exchange, kind, reason or kind)
        place = self._lanes.setdefault(name, _Lane())
        insort(place.held, held, key=lambda other: other.key)
        self._count += 1
        try:
            await within(max(0.0, limit_s - exchange.held_s), held.turn)
        except TimeoutError:
            self.timed_out_total += 1
            raise Reject(
                503,
                "hold_timeout",
                f"the request waited {limit_s:g} s in the router: {held.reason}",
                retry_after_s=1,
            ) from None
        finally:
            exchange.held_s += self._clock.now() - held.since
            place.remove(held)
            self._count -= 1
            if not place.held:
                del self._lanes[name]
            elif held.turn.done():
                self._look_soon(place)

    def _enter(self, exchange: Exchange, kind: str, reason: str) -> Held:
        if self._is_closed:
            raise _shutting_down()
        if exchange.hold_place is None:
            if self._count >= self._max_requests:
                self.refused_total += 1
                raise Reject(
                    503,
                    "hold_queue_full",
                    f"{self._max_requests} requests wait already (router.max_held_requests): {reason}",
                    retry_after_s=1,
                )
            exchange.hold_place = next(self._places)
            self.held_total += 1
        return Held(exchange, kind, reason, self._clock.now(), asyncio.get_running_loop().create_future())

    async def wait_for_worker(self, exchange: Exchange, waits_for: Mapping[Worker, str]) -> None:
        """Holds an exchange until one of these workers may take it, or another has come. For the core."""
        reasons = sorted(set(waits_for.values()))
        more = f", and {len(reasons) - 3} reasons more" if len(reasons) > 3 else ""
        lane = _WorkerLane(frozenset(waits_for.items()))
        await self.hold(exchange, NO_WORKER_YET, lane=lane, reason="; ".join(reasons[:3]) + more)

    # ------------------------------------------------------------------------------------------------------- waking
    def wake(self, lane: Hashable) -> None:
        """What ``lane`` waits for may be there: each in it has a turn, one after another, until one holds again."""
        if (found := self._lanes.get(lane)) is not None:
            self._wake(found, next(self._rounds))

    def wake_for_workers(self) -> None:
        """A worker's state, version, load or limit changed: the same for all that wait for a worker."""
        if self._lanes:
            round_ = next(self._rounds)
            for key, lane in self._lanes.items():
                if isinstance(key, _WorkerLane):
                    self._wake(lane, round_)

    def _wake(self, lane: _Lane, round_: int) -> None:
        lane.round = round_
        self._look_soon(lane)

    def _look_soon(self, lane: _Lane) -> None:
        if not lane.is_scheduled:
            lane.is_scheduled = True
            asyncio.get_running_loop().call_soon(self._look, lane)

    def _look(self, lane: _Lane) -> None:
        """Gives the first their turn: one, and while they get through two, four and more at a time.

        Who is still there when it is looked again has tried in vain: the rest waits for the next round.
        """
        lane.is_scheduled = False
        if not lane.held or lane.held[0].turn.done():
            return
        if lane.held[0].exchange.hold_round >= lane.round:
            lane.looks = 0
            return
        for held in lane.held[: 1 << min(max(0, lane.looks - 1), MAX_AT_ONCE_BITS)]:
            if not held.turn.done() and held.exchange.hold_round < lane.round:
                held.exchange.hold_round = lane.round
                held.turn.set_result(None)
        lane.looks += 1

    def close(self) -> None:
        """The router stops: everyone who waits is refused, and who would from now on."""
        self._is_closed = True
        for held in self:
            if not held.turn.done():
                held.turn.set_exception(_shutting_down())


def _shutting_down() -> Reject:
    return Reject(503, "shutting_down", "the router is stopping", retry_after_s=1)
