"""Keeps each session on one worker: by a table, by consistent hashing, or by the pin that a request brings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from router_core import (
    Answer,
    Attempt,
    Exchange,
    Identity,
    Outcome,
    PluginSettings,
    Router,
    Scores,
    Session,
    StateKey,
    Worker,
    WorkerState,
    hookimpl,
)
from router_session_affinity.place import Gate, place, place_by_hash
from router_session_affinity.ring import HashRing
from router_session_affinity.rules import GROUP, GROUP_FIELD, SESSION, Affinity, Key, Rules
from router_session_affinity.settings import SessionAffinitySettings
from router_session_affinity.table import SessionTable, Turn
from router_session_affinity.wish import Pin, pinned_workers, read_boolean, tell_worker

AFFINITY: Final = StateKey[Affinity]("session affinity")


class SessionAffinity:
    """Scores a session's own worker highest; gives way when that one is overloaded or out."""

    requires_api: ClassVar[str] = ">=1,<2"
    Settings: ClassVar[type[PluginSettings]] = SessionAffinitySettings

    @staticmethod
    def several_processes(settings: SessionAffinitySettings) -> bool:
        """A session is one process's, a group is not: each would keep it at a worker of its own."""
        return settings.key != GROUP or settings.mode == "hash"

    def __init__(self, settings: SessionAffinitySettings) -> None:
        self._settings = settings
        self._table: SessionTable[Worker] = SessionTable(ttl_s=settings.ttl_s, max_sessions=settings.max_sessions)
        self._ring = HashRing(settings.virtual_nodes)
        self._on_ring: dict[str, Worker] = {}
        self._rules: dict[int, Rules] = {}
        """Those of each settings object: of the process and of profiles."""
        self._moves: Counter[str] = Counter()
        self._router: Router

    # --------------------------------------------------------------------------------------------- outside a request
    @hookimpl
    async def startup(self, router: Router) -> None:
        self._router = router
        router.spawn(self._sweep_forever(), name="session affinity: idle sessions")

    async def _sweep_forever(self) -> None:
        while True:
            await self._router.clock.sleep(min(60.0, self._settings.ttl_s / 4))
            self._table.sweep(self._router.clock.now())

    @hookimpl
    def worker_changed(self, worker: Worker, new: WorkerState) -> None:
        if new is not WorkerState.REMOVED:
            self._ring.add(worker.key)
            self._on_ring[worker.key] = worker
        elif self._on_ring.get(worker.key) is worker:
            self._ring.remove(worker.key)
            del self._on_ring[worker.key]

    @hookimpl
    async def session_opened(self, session: Session, body: dict[str, Any]) -> None:
        if isinstance(value := body.get("is_sticky"), str):
            read_boolean("is_sticky", value)

    @hookimpl
    def session_closed(self, session: Session) -> None:
        self._table.forget((SESSION, session.id))

    @hookimpl
    def describe_session(self, session: Session) -> dict[str, Any] | None:
        entry = self._table.get((SESSION, session.id))
        if entry is None or entry.worker is None:
            return None
        return {"affinity": {"worker": entry.worker.url, "bound": entry.bound is not None, "moves": entry.moves}}

    @hookimpl
    def metrics(self) -> str:
        lines = [
            "# HELP router_affinity_sessions Sessions and groups that have a worker.",
            "# TYPE router_affinity_sessions gauge",
            f"router_affinity_sessions {len(self._table)}",
            "# HELP router_affinity_moves_total Sessions and groups that went to another worker, by reason.",
            "# TYPE router_affinity_moves_total counter",
            *(f'router_affinity_moves_total{{reason="{why}"}} {count}' for why, count in sorted(self._moves.items())),
            "# HELP router_affinity_forgotten_total Sessions and groups forgotten: idle, or too many.",
            "# TYPE router_affinity_forgotten_total counter",
            f'router_affinity_forgotten_total{{reason="idle"}} {self._table.expired}',
            f'router_affinity_forgotten_total{{reason="full"}} {self._table.evicted}',
        ]
        return "\n".join(lines) + "\n"

    # ----------------------------------------------------------------------------------------------- during a request
    @hookimpl
    def identify(self, exchange: Exchange) -> Identity | None:
        group = exchange.request.headers.get_raw(GROUP_FIELD)
        if group and exchange.settings(self).key == GROUP:
            return Identity(group=group.decode("latin-1"))
        return None

    @hookimpl
    def request_start(self, exchange: Exchange) -> None:
        affinity = self._rules_of(exchange.settings(self)).read(exchange)
        if affinity is not None:
            exchange.state[AFFINITY] = affinity

    @hookimpl
    def filter_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> Sequence[Worker] | None:
        affinity = exchange.state.get(AFFINITY)
        pin = affinity.pin_of(exchange) if affinity is not None else None
        if pin is None or not pin.is_hard:
            return None
        pinned = self._pinned(pin)
        for worker in workers:
            if worker not in pinned:
                exchange.leave_out(
                    worker, f"the request is pinned to {pin}{'' if pinned else ', which is not registered'}"
                )
        return [worker for worker in workers if worker in pinned]

    @hookimpl
    def score_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> Scores | None:
        affinity = exchange.state.get(AFFINITY)
        if affinity is None or affinity.key is None:
            return None
        if affinity.pin is not None and self._pinned_among(affinity, exchange, workers):
            return None
        if affinity.is_hashed:
            found = place_by_hash(affinity.key[1], workers, affinity.gate, self._ring, self._on_ring)
        else:
            turn = self._turn(affinity, affinity.key)
            found = place(turn.entry.worker, workers, affinity.gate, self._table.sessions_of)
            self._table.reserve(turn, found.worker)
        affinity.why = found.why
        return {found.worker: found.score}

    @hookimpl
    def pick_worker(self, exchange: Exchange, workers: Sequence[Worker], scores: Scores) -> Worker | None:
        affinity = exchange.state.get(AFFINITY)
        if affinity is None or affinity.pin is None:
            return None
        if not (pinned := self._pinned_among(affinity, exchange, workers)):
            return None
        return min(pinned, key=lambda worker: (-scores[worker], worker.last_pick))

    @hookimpl
    def attempt_start(self, exchange: Exchange, attempt: Attempt) -> None:
        affinity = exchange.state.get(AFFINITY)
        if affinity is not None and affinity.key is not None and not affinity.is_hashed:
            self._table.reserve(self._turn(affinity, affinity.key), attempt.worker)

    @hookimpl
    def response_start(self, exchange: Exchange, answer: Answer) -> None:
        if exchange.attempts and answer.error_code is None:
            tell_worker(exchange.attempts[-1].worker, answer.headers)

    @hookimpl
    def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
        affinity = exchange.state.get(AFFINITY)
        if affinity is None or affinity.turn is None:
            return
        now = self._router.clock.now()
        if not (outcome.is_ok and exchange.attempts and _has_served(exchange.attempts[-1])):
            self._table.fail(affinity.turn, now)
            return
        worker = exchange.attempts[-1].worker
        old = self._table.succeed(affinity.turn, worker, now)
        if old is not None:
            self._moves[_reason(affinity)] += 1
            if affinity.key is not None and affinity.key[0] == SESSION:
                self._router.session_moved(affinity.key[1], old, worker)

    # ----------------------------------------------------------------------------------------------------- the pieces
    def _rules_of(self, settings: SessionAffinitySettings) -> Rules:
        rules = self._rules.get(id(settings))
        if rules is None:
            rules = self._rules[id(settings)] = Rules(
                settings.key,
                Gate(settings.overload_absolute, settings.overload_relative),
                is_hashed=settings.mode == "hash",
                hard_pins=settings.hard_pins,
                max_key_characters=settings.max_key_characters,
                session_headers=self._router.settings.session_headers,
            )
        return rules

    def _turn(self, affinity: Affinity, key: Key) -> Turn[Worker]:
        if affinity.turn is None:
            affinity.turn = self._table.begin(key, self._router.clock.now())
        return affinity.turn

    def _pinned(self, pin: Pin) -> list[Worker]:
        """The registered workers that a pin names, whatever their state."""
        return pinned_workers(pin, self._router.workers.find(pin.name))

    def _pinned_among(self, affinity: Affinity, exchange: Exchange, workers: Sequence[Worker]) -> list[Worker]:
        pin = affinity.pin_of(exchange)
        return [] if pin is None else [worker for worker in self._pinned(pin) if worker in workers]


def _reason(affinity: Affinity) -> str:
    """Why a session moved: its request said so, its worker was out or overloaded, or other plugins wanted it."""
    if affinity.pin is not None:
        return "pinned"
    return "outvoted" if affinity.why == "stays" else affinity.why


def _has_served(attempt: Attempt) -> bool:
    """Whether the attempt ended in an answer that is no refusal."""
    return attempt.outcome is not None and attempt.outcome.is_ok and attempt.status is not None and attempt.status < 400
