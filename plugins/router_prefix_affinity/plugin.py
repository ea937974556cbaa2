"""Sends a request where most of its prompt is cached, as far as the load allows."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from router_core import (
    Attempt,
    Exchange,
    MalformedBody,
    PluginSettings,
    Request,
    Router,
    Scores,
    StateKey,
    Worker,
    WorkerState,
    hookimpl,
)
from router_prefix_affinity.index import PrefixIndex
from router_prefix_affinity.off_gpu import Provider
from router_prefix_affinity.prompt import block_chain
from router_prefix_affinity.settings import PrefixAffinitySettings


@dataclass(slots=True)
class Prompt:
    """The prompt of one exchange."""

    chain: list[int]
    off_gpu: dict[str, float] = field(default_factory=dict)
    """Worker's url -> share that it could load from a cache outside its GPU."""


PROMPT = StateKey[Prompt]("prefix affinity: prompt")
CACHE = StateKey[tuple[int, PrefixIndex]]("prefix affinity: cache epoch and index")


class PrefixAffinity:
    """Scores a worker by the share of the prompt that was sent to it before; a miss goes to the least loaded."""

    requires_api: ClassVar[str] = ">=1,<2"
    several_processes: ClassVar[bool] = True
    Settings: ClassVar[type[PluginSettings]] = PrefixAffinitySettings

    def __init__(self, settings: PrefixAffinitySettings) -> None:
        self._settings = settings
        self._provider: Provider | None = None
        if settings.off_gpu_provider is not None:
            self._provider = Provider(settings.off_gpu_provider, settings.off_gpu_timeout_s)
        self._hits = self._misses = 0
        self._router: Router

    @hookimpl
    async def startup(self, router: Router) -> None:
        self._router = router

    @hookimpl
    def worker_changed(self, worker: Worker, new: WorkerState) -> None:
        if new is not WorkerState.READY:
            worker.state_of.pop(CACHE)

    @hookimpl
    def request_start(self, exchange: Exchange) -> Awaitable[None] | None:
        request = exchange.request
        if not self._is_readable(request):
            return None
        try:
            body = request.ready_json()
        except MalformedBody:
            return None  # the worker will tell the client
        if body is None:
            return self._read_later(exchange)
        return self._read_prompt(exchange, body)

    async def _read_later(self, exchange: Exchange) -> None:
        try:
            body = await exchange.request.shared_json()
        except MalformedBody:
            return
        if (asking := self._read_prompt(exchange, body)) is not None:
            await asking

    def _read_prompt(self, exchange: Exchange, body: object) -> Awaitable[None] | None:
        if not isinstance(body, dict) or not (chain := block_chain(body, self._settings.block_bytes)):
            return None
        prompt = exchange.state[PROMPT] = Prompt(chain)
        return None if self._provider is None else self._ask(self._provider, prompt, body)

    async def _ask(self, provider: Provider, prompt: Prompt, body: Mapping[str, Any]) -> None:
        prompt.off_gpu = await provider.scores(body, [worker.url for worker in self._router.workers])

    @hookimpl
    def score_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> Scores | None:
        prompt = exchange.state.get(PROMPT)
        if prompt is None:
            return None
        scores: dict[Worker, float] = {}
        for worker in workers:
            share = self._share(worker, prompt)
            if share >= self._settings.min_share and not self._is_overloaded(worker, workers):
                scores[worker] = share
        if scores:
            self._hits += 1
            return scores
        self._misses += 1
        return {min(workers, key=lambda worker: (worker.inflight, worker.last_pick)): 1.0}

    @hookimpl
    def attempt_start(self, exchange: Exchange, attempt: Attempt) -> None:
        if (prompt := exchange.state.get(PROMPT)) is not None:
            max_blocks = self._settings.max_blocks // max(1, len(self._router.workers))
            self._index(attempt.worker).add(prompt.chain, max_blocks)

    @hookimpl
    def metrics(self) -> str:
        blocks = sum(len(self._index(worker)) for worker in self._router.workers)
        failures = self._provider.failures if self._provider else 0
        return (
            "# HELP router_prefix_affinity_choices_total Choices with and without a known prefix.\n"
            "# TYPE router_prefix_affinity_choices_total counter\n"
            f'router_prefix_affinity_choices_total{{result="hit"}} {self._hits}\n'
            f'router_prefix_affinity_choices_total{{result="miss"}} {self._misses}\n'
            "# HELP router_prefix_affinity_blocks Blocks of prompts remembered for all workers.\n"
            "# TYPE router_prefix_affinity_blocks gauge\n"
            f"router_prefix_affinity_blocks {blocks}\n"
            "# HELP router_prefix_affinity_provider_failures_total Off-GPU scores that did not come.\n"
            "# TYPE router_prefix_affinity_provider_failures_total counter\n"
            f"router_prefix_affinity_provider_failures_total {failures}\n"
        )

    # ----------------------------------------------------------------------------------------------------- the pieces
    def _is_readable(self, request: Request) -> bool:
        """A JSON post whose length is known and within the bound."""
        if request.method != "POST":
            return False
        for name, value in request.headers.raw:
            if name == b"content-encoding" or (name == b"content-type" and b"json" not in value.lower()):
                return False
        ready = request.ready_body
        length = request.source.length if ready is None else len(ready)
        return length is not None and length <= self._settings.max_body_bytes

    def _share(self, worker: Worker, prompt: Prompt) -> float:
        share = self._index(worker).match(prompt.chain) / len(prompt.chain)
        return max(share, self._settings.off_gpu_factor * prompt.off_gpu.get(worker.url, 0.0))

    def _is_overloaded(self, worker: Worker, workers: Sequence[Worker]) -> bool:
        settings, inflight = self._settings, worker.inflight
        if inflight <= settings.overload_absolute:
            return False  # the common case: no need to look for the least loaded one
        least = min(other.inflight for other in workers)
        return inflight > least + settings.overload_absolute and inflight > least * settings.overload_relative

    def _index(self, worker: Worker) -> PrefixIndex:
        """What is known of the worker's cache; nothing once that is known to be empty."""
        kept: Any = worker.state_of.get(CACHE)
        if kept is None or kept[0] != worker.cache_epoch:
            kept = worker.state_of[CACHE] = (worker.cache_epoch, PrefixIndex())
        return kept[1]  # type: ignore[no-any-return]  # a pair, see CACHE
