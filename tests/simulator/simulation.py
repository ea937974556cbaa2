"""Plays a trace against simulated engines through the real routing, in virtual time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import orjson

from router_core import Exchange
from router_core.testing import TurnedClock
from tests.simulator.engine import Job, SimulatedEngine, Speed
from tests.simulator.kv_cache import Segment
from tests.simulator.routing import Policy, Routing
from tests.simulator.trace import Session


@dataclass(frozen=True, slots=True)
class Loss:
    """A worker that dies at a time and is back, empty, after another."""

    worker: int
    at_s: float
    back_after_s: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """The engines and how sessions come to them."""

    workers: int = 8
    speed: Speed = field(default_factory=Speed)
    concurrent_sessions: int | None = None
    """Sessions that run at one time; None starts all at once, as a synchronous rollout step does."""
    losses: Sequence[Loss] = ()


@dataclass(slots=True)
class Result:
    """What came out of one run."""

    makespan_s: float = 0.0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    turns: int = 0
    moves: int = 0
    """Turns that were served by another worker than the session's turn before."""
    retried: int = 0
    """Turns sent again because their worker died."""
    latencies_s: list[float] = field(default_factory=list)

    @property
    def hit_share(self) -> float:
        return self.hit_tokens / self.prompt_tokens

    def latency_s(self, quantile: float) -> float:
        return sorted(self.latencies_s)[min(len(self.latencies_s) - 1, int(quantile * len(self.latencies_s)))]


@dataclass(slots=True, eq=False)
class _Run:
    """A session under way."""

    session: Session
    path: list[Segment]
    text: str = ""
    turn: int = 0
    began_at: float = 0.0
    exchange: Exchange | None = None
    last_worker: str | None = None


class Simulation:
    """One policy, one trace, one run."""

    def __init__(self, policy: Policy, scenario: Scenario) -> None:
        self._clock = TurnedClock(0.0)
        self._scenario = scenario
        urls = [f"http://10.0.0.{number + 1}:30000" for number in range(scenario.workers)]
        self._routing = Routing(policy, urls, self._clock)
        self._reads_prompts = policy.reads_prompts
        self._engines = {worker.url: SimulatedEngine(scenario.speed) for worker in self._routing.workers}
        self._events: list[tuple[float, int, Callable[[], Awaitable[None]]]] = []
        self._serial = itertools.count()
        self._due: dict[str, float | None] = dict.fromkeys(self._engines)
        self._waiting: list[Session] = []
        self.result = Result()

    @property
    def inflight(self) -> int:
        """Requests that the router counts; 0 once all is over."""
        return sum(worker.inflight for worker in self._routing.workers)

    async def play(self, sessions: Sequence[Session]) -> Result:
        """Runs every session to its end."""
        await self._routing.application.start()
        first = self._scenario.concurrent_sessions or len(sessions)
        self._waiting = list(sessions[first:])[::-1]
        for session in sessions[:first]:
            self._at(0.0, partial(self._begin, session))
        for loss in self._scenario.losses:
            self._at(loss.at_s, partial(self._lose, loss))
        while self._events:
            at, _, act = heapq.heappop(self._events)
            await self._clock.turn(max(0.0, at - self._clock.now()))
            await act()
        await self._routing.application.stop()
        return self.result

    def _at(self, when: float, act: Callable[[], Awaitable[None]]) -> None:
        heapq.heappush(self._events, (when, next(self._serial), act))

    # -------------------------------------------------------------------------------------------------------- sessions
    async def _begin(self, session: Session) -> None:
        run = _Run(session, [Segment(session.group, session.shared_tokens)])
        if self._reads_prompts:
            run.text = _text(session.group, session.shared_tokens)
        self._ask_next(run)
        await self._send(run)

    def _ask_next(self, run: _Run) -> None:
        self._grow(run, "new", run.session.turns[run.turn].new_tokens)
        run.began_at = self._clock.now()

    def _grow(self, run: _Run, kind: str, tokens: int) -> None:
        name = f"{run.session.id}/{run.turn}/{kind}"
        run.path.append(Segment(name, tokens))
        if self._reads_prompts:
            run.text += _text(name, tokens)

    async def _send(self, run: _Run) -> None:
        body = orjson.dumps({"text": run.text}) if self._reads_prompts else b"{}"
        run.exchange = await self._routing.choose(run.session.id, run.session.group, body)
        turn = run.session.turns[run.turn]
        output = Segment(f"{run.session.id}/{run.turn}/output", turn.output_tokens)
        url = run.exchange.worker.url if run.exchange.worker else ""
        self._engines[url].submit(Job(run, list(run.path), output), self._clock.now())
        self._watch(url)

    async def _ended(self, url: str, job: Job) -> None:
        run: _Run = job.tag
        if run.exchange is None:
            raise RuntimeError("a request ended that was never sent")
        await self._routing.end(run.exchange, served=True)
        result, now = self.result, self._clock.now()
        result.turns += 1
        result.moves += run.last_worker not in (None, url)
        result.prompt_tokens += sum(segment.tokens for segment in job.prompt)
        result.hit_tokens += job.hit_tokens
        result.latencies_s.append(now - run.began_at)
        result.makespan_s = now
        run.last_worker = url
        turn = run.session.turns[run.turn]
        self._grow(run, "output", turn.output_tokens)
        run.turn += 1
        if run.turn < len(run.session.turns):
            self._at(now + turn.wait_s, partial(self._go_on, run))
        elif self._waiting:
            await self._begin(self._waiting.pop())

    async def _go_on(self, run: _Run) -> None:
        self._ask_next(run)
        await self._send(run)

    # --------------------------------------------------------------------------------------------------------- engines
    def _watch(self, url: str) -> None:
        """Sees to it that the engine's next end is noticed."""
        end = self._engines[url].next_end()
        self._due[url] = end
        if end is not None:
            self._at(end, partial(self._look, url, end))

    async def _look(self, url: str, due: float) -> None:
        if self._due[url] != due:
            return  # something came between; another look is due
        ended = self._engines[url].finish(self._clock.now())
        self._watch(url)
        for job in ended:
            await self._ended(url, job)

    async def _lose(self, loss: Loss) -> None:
        worker = list(self._routing.workers)[loss.worker]
        lost = self._engines[worker.url].die(self._clock.now())
        self._due[worker.url] = None
        self._routing.lose(worker)
        for job in lost:
            await self._routing.end(job.tag.exchange, served=False)
        for job in lost:
            self.result.retried += 1
            await self._send(job.tag)
        self._at(loss.at_s + loss.back_after_s, partial(self._bring_back, worker.url))

    async def _bring_back(self, url: str) -> None:
        worker = self._routing.workers.get(url)
        if worker is not None:
            self._routing.bring_back(worker)


def _text(name: str, tokens: int) -> str:
    """A segment's text: one character a token, different from the start for every name."""
    return (f"[{name}]" * (tokens // (len(name) + 2) + 1))[:tokens]
