"""What a worker is, asked from itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from router_core import Router, StateKey, Worker

Kind: TypeAlias = Literal["sglang", "vllm"]
KINDS: tuple[Kind, ...] = ("sglang", "vllm")

SIGNS: tuple[tuple[str, str, Kind], ...] = (
    ("/get_model_info", "is_generation", "sglang"),
    ("/server_info?config_format=json", "vllm_config", "vllm"),
)
"""Route, a key of its answer, and whose they are; for servers whose model list does not tell."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker said of itself."""

    generation: int
    kind: Kind | None
    """None: it speaks to us, but is of no kind we know."""
    max_model_len: int | None = None
    """Most tokens of prompt and answer that it takes."""


FACTS = StateKey[WorkerFacts]("tito worker facts")


class Detector:
    """Asks each worker once; a worker registered anew is asked anew. ``fixed`` says the kind of all of them."""

    def __init__(self, router: Router, *, fixed: Kind | None, timeout_s: float) -> None:
        self._router = router
        self._fixed = fixed
        self._timeout_s = timeout_s
        self._asking: dict[Worker, asyncio.Task[WorkerFacts | None]] = {}

    async def facts(self, worker: Worker) -> WorkerFacts | None:
        """None for a worker that does not answer. What is not known for good is asked again for the next turn."""
        known = worker.state_of.get(FACTS)
        if known is not None and known.generation == worker.generation:
            return known
        asking = self._asking.get(worker)
        if asking is None:
            asking = self._asking[worker] = self._router.spawn(self._ask(worker), name=f"kind of {worker.url}")
            asking.add_done_callback(lambda _: self._asking.pop(worker))
        return await asyncio.shield(asking)

    async def _ask(self, worker: Worker) -> WorkerFacts | None:
        generation = worker.generation
        models = await self._get(worker, "/v1/models")
        if models is None:
            return None
        listed = models.get("data")
        model = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
        limit = model.get("max_model_len")
        limit = limit if isinstance(limit, int) and not isinstance(limit, bool) else None
        kind = self._fixed or next((kind for kind in KINDS if model.get("owned_by") == kind), None)
        for path, key, sign in SIGNS:
            if kind is None and key in (await self._get(worker, path) or {}):
                kind = sign
        found = WorkerFacts(generation, kind, limit)
        if kind is not None:
            worker.state_of[FACTS] = found  # before anybody can see that nobody asks any more
        return found

    async def _get(self, worker: Worker, path: str) -> dict[str, Any] | None:
        """The object that the worker answers, empty for anything else; None where it does not answer."""
        answer = await self._router.control.call(worker, "GET", path, timeout_s=self._timeout_s)
        if not answer.status:
            return None
        told = answer.json() if answer.is_ok else None
        return told if isinstance(told, dict) else {}
