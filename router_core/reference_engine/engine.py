"""Generates many requests side by side on one event loop: one batch of rows per loop turn.

The loop owns all state; nothing here is touched from another thread.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Literal, get_args

from router_core.reference_engine.admission import Admission
from router_core.reference_engine.decoder import Decoder
from router_core.reference_engine.errors import RequestError
from router_core.reference_engine.generation import FinishReason, Generation, GenerationRequest
from router_core.reference_engine.model import Model
from router_core.reference_engine.options import EngineOptions
from router_core.reference_engine.prefix_cache import PrefixCache
from router_core.reference_engine.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

PauseMode = Literal["abort", "retract", "in_place"]
PAUSE_MODES: tuple[PauseMode, ...] = get_args(PauseMode)

_TURNS_AFTER_STEP = 4
"""Turns of the loop until a token has left its wire, so that a stream has a chunk for each."""


class Engine:
    """Runs between ``start`` and ``close``; the next token is sampled with ``model`` as ``weight_version``."""

    def __init__(self, model: Model, tokenizer: Tokenizer, options: EngineOptions) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.options = options
        self.weight_version = options.weight_version
        self.prefix_cache = PrefixCache(options.max_cached_tokens)
        self.is_paused = False
        self.generated_tokens = 0
        self.finished_requests = 0
        self._decoder = Decoder(tokenizer)
        self._waiting: deque[Generation] = deque()
        self._running: deque[Generation] = deque()
        self._weights_lock = asyncio.Lock()
        self._is_draining = False
        self._wake = asyncio.Event()
        self._has_drained = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._admission = Admission(options)
        self._is_closed = False

    async def start(self) -> None:
        """Begin to serve what is submitted."""
        self._task = asyncio.create_task(self._run(), name="reference engine")

    async def close(self) -> None:
        """Abort what runs and stop; nothing can be submitted any more."""
        self._is_closed = True
        self.abort_all()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def running_requests(self) -> int:
        """How many requests are being generated."""
        return len(self._running)

    @property
    def waiting_requests(self) -> int:
        """How many requests have not been begun, or were retracted."""
        return len(self._waiting)

    @property
    def used_tokens(self) -> int:
        """How many tokens the running requests hold."""
        return sum(generation.cache.length for generation in self._running)

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Queue requests; if one of them can never be served, none is queued: RequestError."""
        if self._is_closed:
            raise RequestError("The engine is shutting down.", 503)
        taken = {generation.request.rid for generation in self.unfinished()}
        for request in requests:
            self._admission.check(request, self.model.config.vocab_size, taken)
            taken.add(request.rid)
        generations = [self._admission.admit(request, self.model, self.tokenizer) for request in requests]
        for generation in generations:
            generation.due_at = asyncio.get_running_loop().time() + self.options.step_delay_s
        self._waiting.extend(generations)
        self._wake.set()
        return generations

    def abort(self, generation: Generation, message: str = "Aborted", status: int | None = None) -> None:
        """End one request with the tokens it has."""
        generation.finish(_abort_reason(message, status))
        self._wake.set()

    def abort_matching(self, rid: str) -> None:
        """Abort the requests whose rid begins with ``rid``, as SGLang does; an unknown one is no error."""
        for generation in self.unfinished():
            if generation.request.rid.startswith(rid):
                self.abort(generation)

    def abort_ids(self, rids: Collection[str]) -> int:
        """Abort the requests with one of these rids, or that are siblings made of one; return how many."""
        found = [item for item in self.unfinished() if item.request.rid in rids or item.request.group in rids]
        for generation in found:
            self.abort(generation)
        return len(found)

    def abort_all(self) -> int:
        """Abort every request; return how many."""
        found = self.unfinished()
        for generation in found:
            self.abort(generation)
        return len(found)

    def unfinished(self) -> list[Generation]:
        """Return the requests that run or wait."""
        return [item for item in [*self._running, *self._waiting] if not item.is_finished]

    async def drain(self) -> None:
        """Wait until nothing runs or the engine is paused; what is submitted meanwhile waits, then runs."""
        async with self._weights_lock, self._drained():
            pass

    def pause(self, mode: PauseMode) -> None:
        """Stop sampling. ``abort`` ends what runs, ``retract`` drops its keys and values, ``in_place`` keeps them.

        What is submitted while paused waits.
        """
        self.is_paused = True
        if mode == "abort":
            self.abort_all()
        elif mode == "retract":
            self._retract()
        self._wake.set()

    def resume(self) -> None:
        """Sample again."""
        self.is_paused = False
        self._wake.set()

    def flush_cache(self) -> bool:
        """Forget cached prefixes; False, and nothing done, when requests are running or waiting."""
        self._drop_finished()
        if self._running or self._waiting:
            return False
        self.prefix_cache.clear()
        return True

    async def update_weights(self, load: Callable[[], Model], version: str | None) -> None:
        """Take the model that ``load``, called in a thread, returns.

        Running requests end first and new ones wait, unless the engine is paused: then they go on with the new weights.
        """
        async with self._weights_lock:
            model = await asyncio.to_thread(load)
            async with self._drained():
                self.model = model
                self.weight_version = self.weight_version if version is None else version
                self.prefix_cache.clear()

    @asynccontextmanager
    async def _drained(self) -> AsyncIterator[None]:
        """Hold back what waits, and enter once nothing runs or the engine is paused; one holder at a time."""
        self._is_draining = True
        self._has_drained.clear()
        self._wake.set()
        try:
            await self._has_drained.wait()
            yield
        finally:
            self._is_draining = False
            self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            self._drop_finished()
            self._admit()
            if self._is_draining and (self.is_paused or not self._running):
                self._has_drained.set()
            batch = [] if self.is_paused else [item for item in self._running if item.due_at <= loop.time()]
            if batch:
                self._step(batch)
                for _ in range(_TURNS_AFTER_STEP):
                    await asyncio.sleep(0)
            else:
                await self._sleep_until_due()

    async def _sleep_until_due(self) -> None:
        """Sleep until the next request is due or something changes."""
        timeout = None
        if self._running and not self.is_paused:
            timeout = max(0.0, min(item.due_at for item in self._running) - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        except TimeoutError:
            return

    def _drop_finished(self) -> None:
        for queue in (self._running, self._waiting):
            for generation in [item for item in queue if item.is_finished]:
                queue.remove(generation)
                self.finished_requests += 1

    def _admit(self) -> None:
        """Move waiting requests to the running ones, each with the longest prefix that is known."""
        while self._waiting and not self.is_paused and not self._is_draining:
            if len(self._running) >= self.options.max_running_requests:
                return
            generation = self._waiting.popleft()
            at_most = len(generation.token_ids) - 1
            if generation.request.input_logprobs_from is not None:
                at_most = min(at_most, generation.request.input_logprobs_from)
            cached = self.prefix_cache.fill(generation.cache, generation.token_ids, at_most)
            if not generation.retractions:
                generation.cached_tokens = cached
            self.prefix_cache.add(generation.cache)
            self._running.append(generation)

    def _retract(self) -> None:
        """Send running requests back to the queue; their tokens stay, the rest is computed again."""
        self._drop_finished()
        while self._running:
            generation = self._running.pop()
            generation.retract(self.model.new_cache())
            self._waiting.appendleft(generation)

    def _step(self, batch: list[Generation]) -> None:
        """Compute some rows; a fault of the model ends this batch and no other."""
        try:
            step = self._decoder.step(self.model, batch, self.weight_version)
        except Exception as error:  # noqa: BLE001 - the clients must be told, and the loop must live
            _log.exception("a step of %d requests failed", len(batch))
            for generation in batch:
                self.abort(generation, f"{type(error).__name__}: {error}", 500)
            return
        for generation in step.served:
            self._running.remove(generation)
            self._running.append(generation)
        due_at = asyncio.get_running_loop().time() + self.options.step_delay_s
        for generation in step.sampled:
            self.generated_tokens += 1
            generation.due_at = due_at
            if generation.is_finished:
                self.prefix_cache.touch(generation.cache)


def _abort_reason(message: str, status: int | None) -> FinishReason:
    err_type = None if status is None else "InternalServerError"
    return {"type": "abort", "message": message, "status_code": status, "err_type": err_type}
