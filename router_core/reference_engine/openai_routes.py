"""``/v1/chat/completions`` and ``/v1/completions``: reads a call, runs it, and has its dialect write the answer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router_core.reference_engine.engine import Engine
from router_core.reference_engine.generation import Generation
from router_core.reference_engine.http import EventStream, json_response, read_body, unless_client_leaves
from router_core.reference_engine.openai_call import OpenAiCall, read_chat, read_completion
from router_core.reference_engine.script import read_script


class Writer(Protocol):
    """How a dialect writes answers and streams."""

    def check_chat(self, call: OpenAiCall) -> None:
        """Raise a RequestError for what cannot be answered."""

    def chat_answer(self, call: OpenAiCall, generations: list[Generation]) -> dict[str, object]:
        """Return the JSON of a finished chat."""

    def chat_events(self, call: OpenAiCall, generations: list[Generation]) -> AsyncIterator[bytes]:
        """Yield server-sent events of a chat."""

    def completion_answer(self, call: OpenAiCall, generations: list[Generation]) -> dict[str, object]:
        """Return the JSON of a finished completion."""

    def completion_events(self, call: OpenAiCall, generations: list[Generation]) -> AsyncIterator[bytes]:
        """Yield server-sent events of a completion."""


class OpenAiRoutes:
    """Handlers over one engine and the writer of its dialect."""

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self._engine = engine
        self._writer = writer

    def routes(self) -> list[Route]:
        """Return both routes."""
        return [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
        ]

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        call = await self._read(request, read_chat)
        self._writer.check_chat(call)
        return await self._run(request, call, self._writer.chat_answer, self._writer.chat_events)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        call = await self._read(request, read_completion)
        return await self._run(request, call, self._writer.completion_answer, self._writer.completion_events)

    async def _read(self, request: Request, read: Callable[..., OpenAiCall]) -> OpenAiCall:
        script = read_script(request, self._engine.tokenizer)
        return read(await read_body(request), self._engine, request.headers.get("x-request-id"), script)

    async def _run(
        self,
        request: Request,
        call: OpenAiCall,
        write: Callable[[OpenAiCall, list[Generation]], dict[str, object]],
        stream: Callable[[OpenAiCall, list[Generation]], AsyncIterator[bytes]],
    ) -> Response:
        generations = self._engine.submit(call.requests)

        def leave() -> None:
            for generation in generations:
                self._engine.abort(generation)

        if call.stream:
            return EventStream(stream(call, generations), leave)
        try:
            await unless_client_leaves(request, _finished(generations))
        finally:
            leave()
        return json_response(write(call, generations))


async def _finished(generations: list[Generation]) -> None:
    await asyncio.gather(*(generation.wait_finished() for generation in generations))
