"""The real router without HTTP: its configuration, plugins, Plan and selection, on a clock that the simulator turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from router_core import Answer, Attempt, Exchange, Headers, Outcome, OutcomeKind, Request, Worker
from router_core.app import Application
from router_core.config import load
from router_core.selection import select_worker
from router_core.testing import TurnedClock


@dataclass(frozen=True)
class Policy:
    """What a plugins.toml would say."""

    name: str
    enabled: Sequence[str] = ()
    plugins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def reads_prompts(self) -> bool:
        return "prefix_affinity" in self.enabled


class _Body:
    """A request's body that is there whole."""

    is_declared = True

    def __init__(self, whole: bytes) -> None:
        self.whole = whole
        self.length = len(whole)

    async def read_all(self) -> bytes:
        return self.whole

    async def stream(self) -> AsyncIterator[bytes]:
        yield self.whole


class Routing:
    """Chooses workers for requests and is told how they ended, hook by hook as the proxy does it."""

    def __init__(self, policy: Policy, urls: Sequence[str], clock: TurnedClock) -> None:
        tables = {"enabled": list(policy.enabled), "plugins": policy.plugins, "router": {"workers": list(urls)}}
        self.application = Application(load(tables, file="", environment={}), clock=clock)
        self.plan = self.application.plans.default
        self.workers = self.application.workers
        self._clock = clock
        self._serial = 0

    async def choose(self, session_id: str, group: str, body: bytes) -> Exchange:
        """An exchange with one attempt, at ``exchange.worker``. Raises NoWorker."""
        self._serial += 1
        headers = Headers([(b"content-type", b"application/json"), (b"x-prompt-id", group.encode())])
        request = Request("POST", b"/generate", b"", headers, _Body(body))
        exchange = Exchange(f"e{self._serial}", request, started_at=self._clock.now())
        exchange.session_id = session_id
        exchange.serve_by(self.plan.settings, self.application.router.spawn)
        if (identity := self.plan.identify(exchange)) is not None:
            exchange.identity = identity
        if isinstance(asked := self.plan.request_start(exchange), Awaitable):
            await asked
        attempt = Attempt(select_worker(exchange, self.plan, self.workers), exchange.request.fork(), self._clock.now())
        self.workers.count(attempt)
        exchange.attempts.append(attempt)
        if (telling := self.plan.attempt_start(exchange, attempt)) is not None:
            await telling
        return exchange

    async def end(self, exchange: Exchange, *, served: bool) -> None:
        """Its answer has passed, or its worker was lost."""
        outcome = Outcome(OutcomeKind.OK, 200) if served else Outcome(OutcomeKind.WORKER_LOST, 502, "worker_lost")
        (attempt,) = exchange.attempts
        if served:
            attempt.status = 200
            if (telling := self.plan.response_start(exchange, Answer(200))) is not None:
                await telling
        attempt.outcome = outcome
        self.workers.release(attempt)
        self.plan.response_end(exchange, outcome)

    def lose(self, worker: Worker) -> None:
        """The worker refuses connections from now on."""
        self.workers.quarantine(worker, worker.generation, "lost")

    def bring_back(self, worker: Worker) -> None:
        """It has started again, with nothing cached, and registers."""
        self.workers.add(worker.url)
