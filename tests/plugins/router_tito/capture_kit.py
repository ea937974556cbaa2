"""A router that captures, its scripted workers, and agents that talk to it over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from typing import Any

import orjson
from router_tito.call import Call
from router_tito.plugin import Tito
from router_tito.session_trace import SessionTrace
from router_tito.views import BranchView
from tito_kit import Templated, Trained

from router_core import EventSplitter, event_data, hookimpl
from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import Fields, RawAnswer, RawClient, ScriptedWorker, exchange_once
from router_core.testing.router import RunningRouter, running_router

CHAT = "/v1/chat/completions"
WAIT_S = 10.0


class Door:
    """A tokenizer that is there, or comes when `open` is called."""

    def __init__(self, tokenizer: Any, *, is_open: bool = True) -> None:
        self.tokenizer = tokenizer
        self.runs = 0
        self._opened = asyncio.Event()
        if is_open:
            self._opened.set()

    def open(self) -> None:
        self._opened.set()

    async def ready(self) -> Any:
        await self._opened.wait()
        return self.tokenizer

    async def run(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.runs += 1
        return await asyncio.to_thread(work, *args, **kwargs)


def door_plugin(door: Door) -> type[Any]:
    """A plugin that offers one tokenizer."""

    class TestTokenizer:
        @hookimpl
        def tokenizer(self, name: str | None) -> Door:
            return door

    return TestTokenizer


class Reference(Templated):
    """The tokenizer of the reference engine, as transformers loads it."""

    def __init__(self) -> None:
        from transformers import AutoTokenizer

        self._loaded = AutoTokenizer.from_pretrained(str(ASSETS))
        self._backend = self._loaded.backend_tokenizer
        added = self._backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._backend.encode_batch(list(texts), add_special_tokens=False)]

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._backend.decode(list(token_ids), skip_special_tokens=False)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any],
    ) -> str:
        return self._loaded.apply_chat_template(
            list(messages),
            tools=list(tools) if tools else None,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **template_kwargs,
        )


@cache
def reference_tokenizer() -> Reference:
    return Reference()


@cache
def trained_tokenizer() -> Trained:
    return Trained()


class Capturing:
    """A served router with capture on."""

    def __init__(self, router: RunningRouter, tito: Tito, door: Door) -> None:
        self.router = router
        self.port = router.port
        self.tito = tito
        self.door = door

    async def open(self, session_id: str = "s", **body: Any) -> RawAnswer:
        return await exchange_once(self.port, target="/sessions", json={"session_id": session_id, **body})

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        session_id: str | None = "s",
        headers: Fields = (),
        **body: Any,
    ) -> RawAnswer:
        target = CHAT if session_id is None else f"/sessions/{session_id}{CHAT}"
        return await exchange_once(
            self.port, target=target, headers=headers, json={"model": "m", "messages": messages, **body}
        )

    async def get(self, target: str) -> RawAnswer:
        return await exchange_once(self.port, "GET", target)

    def trace(self, session_id: str = "s") -> SessionTrace:
        return self.tito.traces[session_id]

    def branches(self, session_id: str = "s", **options: Any) -> list[BranchView]:
        return self.trace(session_id).trace.branches(**options)

    def calls(self, session_id: str = "s") -> list[Call]:
        return self.trace(session_id).calls

    async def settle(self) -> None:
        """Until no exchange runs."""
        async with asyncio.timeout(WAIT_S):
            while self.router.application.proxy.running:
                work = [e.outliving for e in self.router.application.proxy.running if e.outliving is not None]
                if work:
                    await asyncio.wait(work)
                await asyncio.sleep(0)


@asynccontextmanager
async def capturing(
    *workers: ScriptedWorker | str,
    tokenizer: Any = None,
    door: Door | None = None,
    enabled: Sequence[str] = ("tito", "least_inflight"),
    classes: Sequence[type[Any]] = (),
    router: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Capturing]:
    """A router in front of ``workers`` with these settings of tito; leaves nothing in flight."""
    door = door or Door(tokenizer or trained_tokenizer())
    urls = [worker if isinstance(worker, str) else worker.url for worker in workers]
    clock = settings.pop("clock", None)
    async with running_router(
        urls,
        enabled=enabled,
        plugins={"tito": settings},
        classes=[door_plugin(door), *classes],
        router=router,
        clock=clock,
    ) as running:
        loaded = {plugin.name: plugin.instance for plugin in running.application.registry.plugins}
        made = Capturing(running, loaded["tito"], door)
        yield made
        await made.settle()
        assert [worker.inflight for worker in running.application.workers] == [0] * len(urls)


@asynccontextmanager
async def captured_worker(dialect: str = "sglang", **settings: Any) -> AsyncIterator[tuple[ScriptedWorker, Capturing]]:
    """A scripted worker and a router in front of it, with session ``s`` open."""
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(ScriptedWorker(dialect))
        made = await stack.enter_async_context(capturing(worker, **settings))
        await made.open()
        yield worker, made


async def until(is_true: Callable[[], bool]) -> None:
    """Until capture's state is so; what changes it tells nobody."""
    async with asyncio.timeout(WAIT_S):
        while not is_true():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0)


def turns(worker: ScriptedWorker) -> list[dict[str, Any]]:
    """The chat bodies that a worker got, in order."""
    return [request.json() for request in worker.requests if request.path == CHAT]


def events(answer: RawAnswer | bytes) -> list[dict[str, Any]]:
    """The JSON of a stream's events; the last one must be ``[DONE]``."""
    body = answer if isinstance(answer, bytes) else answer.body
    data = [event_data(event) for event in EventSplitter().feed(body)]
    assert data[-1] == b"[DONE]"
    return [orjson.loads(event) for event in data[:-1] if event is not None]


def said(answer: RawAnswer) -> dict[str, Any]:
    """The assistant's message of an answer, streamed or not, without what is null."""
    if not (answer.get("content-type") or "").startswith("text/event-stream"):
        message = answer.json()["choices"][0]["message"]
        return {key: value for key, value in message.items() if value is not None}
    from router_tito.engines.deltas import MessageBuilder

    builder = MessageBuilder()
    for event in events(answer):
        for choice in event["choices"]:
            builder.add(choice["delta"])
    return builder.message()


async def opened_client(port: int) -> RawClient:
    """A raw client that the caller closes."""
    client = RawClient(port)
    await client.__aenter__()
    return client
