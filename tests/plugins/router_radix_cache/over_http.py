"""Rollouts through a real router to a scripted worker, with the reference engine's tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from router_core import hookimpl
from router_core.reference_engine.tokenizer import ASSETS, Tokenizer
from router_core.testing import RawAnswer, ScriptedRequest, ScriptedWorker, exchange_once
from router_core.testing.router import RunningRouter, running_router
from router_core.testing.wire import Signal

QUESTION = "Question: say hello.\nAnswer:"
reference = Tokenizer()

Part = tuple[str, Any]


def ids_of(*parts: Part) -> list[int]:
    """("p", text) is encoded as a whole, ("g", pieces) piece by piece."""
    return [
        token
        for kind, part in parts
        for piece in ([part] if kind == "p" else part)
        for token in reference.encode(piece)
    ]


class Ends:
    """Counts the exchanges that ended."""

    def __init__(self) -> None:
        self.count = 0
        self.signal = Signal()

    def plugin(self) -> type[Any]:
        ends = self

        class Ends:
            @hookimpl
            def response_end(self) -> None:
                ends.count += 1
                ends.signal.notify()

        return Ends


class Rollouts:
    """``generate`` lets the worker sample pieces; ``retrieve`` asks for a text; ``expected`` is the right answer."""

    def __init__(self, router: RunningRouter, worker: ScriptedWorker, ends: Ends) -> None:
        self.router = router
        self.port = router.port
        self.worker = worker
        self.ends = ends

    @property
    def last_request(self) -> ScriptedRequest:
        return self.worker.requests[-1]

    async def generate(
        self, prompt: str | list[int], pieces: list[str], *, finish: str = "stop", headers: Any = (), **body: Any
    ) -> RawAnswer:
        ids = ids_of(("g", pieces))
        logprobs = [-0.01 * (number + 1) for number in range(len(ids))]
        self.worker.say("".join(pieces), ids=ids, finish=finish, logprobs=logprobs)
        key = "text" if isinstance(prompt, str) else "input_ids"
        asked = {key: prompt, "sampling_params": {"max_new_tokens": 64}, "return_logprob": True, **body}
        answer = await exchange_once(self.port, headers=headers, json=asked)
        assert answer.clean, answer.body
        return answer

    async def retrieve(self, text: str | None, status: int = 200, **more: Any) -> dict[str, Any]:
        asked = more if text is None else {"text": text, **more}
        answer = await exchange_once(self.port, target="/retrieve_from_text", json=asked)
        assert answer.status == status, answer.body
        told = answer.json()
        if status == 200:
            lengths = {len(told[key]) for key in ("tokens", "loss_mask", "rollout_logp", "weight_versions")}
            assert lengths == {told["token_length"]} == {told["loss_mask_length"]}
        return told

    async def ended(self, count: int) -> None:
        """Until so many exchanges have ended."""
        async with asyncio.timeout(10):
            await self.ends.signal.wait_until(lambda: self.ends.count >= count)

    async def stats(self) -> dict[str, Any]:
        return (await exchange_once(self.port, "GET", "/radix_cache/stats")).json()

    async def has(self, *parts: Part, **narrow: Any) -> bool:
        """Whether the text of the parts comes back as just these tokens."""
        text = "".join(part if kind == "p" else "".join(part) for kind, part in parts)
        told = await self.retrieve(text, **narrow)
        assert told["response"] == text
        return self.lists(told) == self.expected(*parts)

    @staticmethod
    def lists(told: dict[str, Any]) -> tuple[Any, ...]:
        return told["tokens"], told["loss_mask"], told["rollout_logp"], told["weight_versions"]

    @staticmethod
    def expected(*parts: Part, version: str = "default") -> tuple[Any, ...]:
        mask, logprobs, versions = [], [], []
        for kind, part in parts:
            size = len(ids_of((kind, part)))
            mask += [int(kind == "g")] * size
            logprobs += [-0.01 * (number + 1) if kind == "g" else 0.0 for number in range(size)]
            versions += [version if kind == "g" else None] * size
        return ids_of(*parts), mask, logprobs, versions


@asynccontextmanager
async def rollouts(*, settings: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[Rollouts]:
    """A worker and a router that is ready."""
    plugins = {"hf_tokenizer": {"path": str(ASSETS)}, "radix_cache": settings or {}, **options.pop("plugins", {})}
    enabled = options.pop("enabled", ("hf_tokenizer", "radix_cache"))
    ends = Ends()
    async with (
        ScriptedWorker() as worker,
        running_router([worker.url], enabled=enabled, plugins=plugins, classes=[ends.plugin()], **options) as router,
    ):
        await router.application.outside.find_tokenizer(None).ready()
        yield Rollouts(router, worker, ends)
