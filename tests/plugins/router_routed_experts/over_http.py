"""Routed experts through a real router, from a scripted worker whose experts can be computed."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from router_core import ROUTED_EXPERTS, Answer, CallNext, Exchange, RoutedExperts, hookimpl
from router_core.testing import Experts, RawAnswer, ScriptedWorker, exchange_once
from router_core.testing.engines import EngineName
from router_core.testing.router import RunningRouter, running_router

LAYERS, TOP_K, COUNT = 2, 2, 8
EXPERTS = Experts(LAYERS, TOP_K, COUNT)
SETTINGS = {"layers": LAYERS, "top_k": TOP_K, "num_experts": COUNT, "dense_layers": []}


def rows_of(ids: Sequence[int], start: int = 0) -> np.ndarray:
    return np.array(EXPERTS.rows(ids, start), np.uint8).reshape(-1, LAYERS, TOP_K)


class Joined:
    """What another plugin, further out, finds on an exchange once the answer has passed."""

    def __init__(self) -> None:
        self.found: list[RoutedExperts | None] = []

    def plugin(self) -> type[Any]:
        joined = self

        class Trace:
            @hookimpl
            async def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Answer:
                answer = await call_next(exchange)
                chunks = answer.chunks

                async def passing() -> AsyncIterator[bytes]:
                    async for chunk in chunks:
                        yield chunk
                    joined.found.append(exchange.state.get(ROUTED_EXPERTS))

                answer.chunks = passing()
                return answer

        return Trace


class Routed:
    """A router with the plugin, and its worker."""

    def __init__(self, router: RunningRouter, worker: ScriptedWorker) -> None:
        self.router = router
        self.port = router.port
        self.worker = worker

    async def ask(self, target: str, headers: Any = (), **body: Any) -> RawAnswer:
        answer = await exchange_once(self.port, target=target, headers=headers, json=body)
        assert answer.clean, answer.body
        return answer

    async def generate(self, prompt: list[int], sampled: list[int], headers: Any = (), **body: Any) -> RawAnswer:
        self.worker.say("x" * len(sampled), ids=sampled, finish=body.pop("finish", "stop"))
        return await self.ask("/generate", headers, input_ids=prompt, **body)

    async def show(self, rid: str, status: int = 200, query: str = "") -> RawAnswer:
        answer = await exchange_once(self.port, "GET", f"/routed_experts/{rid}{query}")
        assert answer.status == status, answer.body
        return answer

    async def rows(self, rid: str, query: str = "") -> np.ndarray:
        answer = await self.show(rid, query=query)
        assert int(answer.get("content-length")) == len(answer.body)
        return np.load(io.BytesIO(answer.body))

    async def reason(self, rid: str) -> str:
        """Why the rows of a rid are incomplete, with the worker's name left out."""
        answer = await self.show(rid, 409)
        message = answer.json()["error"]["message"]
        assert self.worker.url in message
        return message.split("not whole: ")[1].replace(f" ({self.worker.url})", "")

    @property
    def sent(self) -> dict[str, Any]:
        return self.worker.requests[-1].json()

    def metrics(self) -> str:
        return self.router.application.outside.metrics()


@asynccontextmanager
async def routed(engine: EngineName = "sglang", settings: Any = None, **options: Any) -> AsyncIterator[Routed]:
    plugins = {"routed_experts": SETTINGS if settings is None else settings, **options.pop("plugins", {})}
    enabled = options.pop("enabled", ("routed_experts",))
    async with (
        ScriptedWorker(engine) as worker,
        running_router([worker.url], enabled=enabled, plugins=plugins, **options) as router,
    ):
        worker.engine.experts = EXPERTS
        yield Routed(router, worker)
