"""The model server a scripted worker plays: paths, words in their order, holds and aborts."""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import orjson

from router_core.testing import sglang, vllm
from router_core.testing.connection import Connection
from router_core.testing.experts import Experts
from router_core.testing.generation import Event, Generation
from router_core.testing.prompts import BadRequestError, is_batch, max_tokens, read_prompts
from router_core.testing.replies import send_events, send_json
from router_core.testing.request import ScriptedRequest
from router_core.testing.wire import Signal
from router_core.testing.words import Words

EngineName = Literal["sglang", "vllm"]

Whole = Callable[[Generation], dict[str, Any]]
Stream = Callable[[Generation], Iterator[Event]]

Shapes = tuple[Whole, Stream]

SHAPES: dict[tuple[str, str], Shapes] = {
    ("sglang", "/generate"): (sglang.generate, sglang.generate_stream),
    ("sglang", "/v1/chat/completions"): (sglang.chat, sglang.chat_stream),
    ("vllm", "/v1/chat/completions"): (vllm.chat, vllm.chat_stream),
    ("vllm", "/v1/completions"): (vllm.completions, vllm.completions_stream),
}


class Engine:
    """What answers when no handler was scripted. Its attributes may be changed at any time."""

    def __init__(self, name: EngineName) -> None:
        self.name = name
        self.model = "scripted"
        self.weight_version = "default"
        self.experts: Experts | None = Experts()
        """None: as a server that was started without returning routed experts."""
        self.default_words = Words.script()
        self.default_words.is_scripted = False
        self._is_held = False
        self._queue: deque[Words] = deque()
        self._scripted: list[Words] = []
        self._running: list[Generation] = []
        self._changed = Signal()

    # The script.

    def script(self, words: Words, times: int | None) -> None:
        words.on_release = self._changed.notify
        self._scripted.append(words)
        if times is None:
            self.default_words = words
        else:
            self._queue.extend([words] * times)

    def hold(self) -> None:
        self._is_held = True

    def release(self) -> None:
        self._is_held = False
        for words in self._scripted:
            words.release()
        self._changed.notify()

    def abort(self, rid: str | None) -> None:
        """End what runs under this rid (None: everything) with the tokens it has."""
        for generation in self._running:
            if rid in (None, generation.rid):
                generation.is_aborted = True
        self._changed.notify()

    # Answering.

    async def answer(self, request: ScriptedRequest, connection: Connection) -> bool:
        """The handler: generations, control verbs (200), and 404 for the rest."""
        shapes = SHAPES.get((self.name, request.path))
        try:
            if request.method != "POST" or (shapes is None and request.path.startswith("/v1/")):
                return await send_json(connection, {"detail": "Not Found"}, 404)
            body = _parse(request)
            if shapes is None:
                return await self._control(request.path, body, connection)
            return await self._generate(body, request.path, shapes, connection)
        except BadRequestError as error:
            return await send_json(connection, self._error(request.path, str(error)), 400)

    def describe(self, path: str) -> bytes:
        """The body of a health path."""
        if path == "/v1/models":
            model = {
                "id": self.model,
                "object": "model",
                "created": sglang.CREATED,
                "owned_by": self.name,
                "root": self.model,
            }
            return orjson.dumps({"object": "list", "data": [model]})
        if path == "/get_model_info":
            return orjson.dumps(
                {"model_path": self.model, "is_generation": True, "weight_version": self.weight_version}
            )
        return b""

    async def _generate(self, body: dict[str, Any], path: str, shapes: Shapes, connection: Connection) -> bool:
        prompts = read_prompts(body, path)
        whole, stream = shapes
        if body.get("stream"):
            self._refuse_what_no_stream_has(body, path)
            if len(prompts) != 1:
                raise BadRequestError("a scripted engine streams one prompt at a time")
        generations = [self._begin(body, prompt) for prompt in prompts]
        try:
            for generation in generations:
                before_head = 0 if body.get("stream") else generation.words.hold_after or 0
                await self._wait_at(generation, before_head, connection, is_first=True)
            if body.get("stream"):
                return await send_events(connection, self._pace(generations[0], stream, connection))
            answers = [whole(generation) for generation in generations]
            return await send_json(connection, answers if is_batch(body, path) else answers[0])
        finally:
            for generation in generations:
                self._running.remove(generation)

    def _begin(self, body: dict[str, Any], prompt_ids: list[int]) -> Generation:
        words = self._queue.popleft() if self._queue else self.default_words
        generation = Generation(body, prompt_ids, words, self.weight_version, self.experts, self.model)
        if not words.is_scripted:
            generation.stop_at = max_tokens(body)
        self._running.append(generation)
        return generation

    async def _wait_at(
        self, generation: Generation, count: int, connection: Connection, *, is_first: bool = False
    ) -> None:
        """Wait while a hold says so, now that ``count`` tokens are sampled; an abort ends it here."""

        def may_go_on() -> bool:
            is_held = (is_first and self._is_held) or generation.words.hold_after == count
            return generation.is_aborted or not is_held

        if not may_go_on():
            await connection.unless_left(self._changed.wait_until(may_go_on))
        if generation.is_aborted:
            generation.stop_at = min(generation.count, count)

    async def _pace(self, generation: Generation, stream: Stream, connection: Connection) -> AsyncIterator[bytes]:
        """The events of a stream, each when it may be sent."""
        for count, event in stream(generation):
            yield orjson.dumps(event)
            if count < generation.count:
                await self._wait_at(generation, count, connection)
        yield b"[DONE]"

    async def _control(self, path: str, body: dict[str, Any], connection: Connection) -> bool:
        if path in ("/abort_request", "/abort_requests"):
            self.abort(None if body.get("abort_all") else str(body.get("rid")))
        if path == "/update_weight_version":
            self.weight_version = str(body.get("new_version"))
        return await send_json(connection, {"success": True})

    def _refuse_what_no_stream_has(self, body: dict[str, Any], path: str) -> None:
        if self.name != "sglang" or path == "/generate":
            return
        for key in sglang.STREAM_REFUSES:
            if body.get(key):
                raise BadRequestError(
                    f"{key} is not supported with streaming. Please set stream=false when using {key}=true."
                )

    def _error(self, path: str, message: str) -> dict[str, Any]:
        if path == "/generate":
            return {"error": {"message": message}}
        return sglang.error(message) if self.name == "sglang" else vllm.error(message)


def _parse(request: ScriptedRequest) -> dict[str, Any]:
    try:
        body = request.json() if request.body else {}
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequestError(f"the body is no JSON object: {request.body[:80]!r}")
    return body
