"""The routes of SGLang 0.5.23 that generate, describe an engine and turn text into ids."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router_core.reference_engine import fields
from router_core.reference_engine.engine import Engine
from router_core.reference_engine.generation import Generation
from router_core.reference_engine.http import (
    DONE,
    EventStream,
    event,
    json_response,
    merged,
    read_body,
    unless_client_leaves,
)
from router_core.reference_engine.script import read_script
from router_core.reference_engine.sglang import GenerateCall, answer, chunks, read_generate

VERSION = "0.5.23"


class SglangRoutes:
    """Handlers over one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._started_at = int(time.time())

    def routes(self) -> list[Route]:
        """Return all routes."""
        return [
            Route("/generate", self.generate, methods=["POST", "PUT"]),
            *(Route(path, self.empty_ok) for path in ("/health", "/health_generate", "/ready", "/ping")),
            *(Route(path, self.model_info) for path in ("/get_model_info", "/model_info")),
            *(Route(path, self.server_info) for path in ("/get_server_info", "/server_info")),
            Route("/v1/models", self.models),
            Route("/v1/loads", self.loads),
            Route("/metrics", self.metrics),
            *(Route(path, self.tokenize, methods=["POST"]) for path in ("/tokenize", "/v1/tokenize")),
            *(Route(path, self.detokenize, methods=["POST"]) for path in ("/detokenize", "/v1/detokenize")),
        ]

    async def generate(self, request: Request) -> Response:
        """POST /generate."""
        engine = self._engine
        call = read_generate(await read_body(request), engine, read_script(request, engine.tokenizer))
        generations = engine.submit(call.requests)

        def leave() -> None:
            for generation in generations:
                engine.abort(generation)

        if call.wishes.stream:
            return EventStream(self._events(call, generations), leave)
        try:
            await unless_client_leaves(request, _finished(generations))
        finally:
            leave()
        answers = [answer(generation, call.wishes, engine) for generation in generations]
        return json_response(answers if call.is_list else answers[0])

    async def _events(self, call: GenerateCall, generations: list[Generation]) -> AsyncIterator[bytes]:
        sources = [chunks(generation, call.wishes, self._engine) for generation in generations]
        async for number, chunk in merged(sources):
            yield event(chunk | {"index": number} if call.is_list else chunk)
        yield DONE

    async def empty_ok(self, request: Request) -> Response:
        """GET /health, /health_generate, /ready, /ping."""
        return Response()

    async def model_info(self, request: Request) -> Response:
        """GET /model_info."""
        options = self._engine.options
        path = str(options.model or "reference")
        return json_response(
            {
                "model_path": path,
                "served_model_name": options.served_model_name,
                "tokenizer_path": str(self._engine.tokenizer.directory),
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": self._engine.weight_version,
                "load_format": "auto",
                "reasoning_parser": "qwen3" if options.reasoning_parser else None,
                "tool_call_parser": "qwen" if options.tool_call_parser else None,
                "disaggregation_mode": "null",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": "qwen3_moe",
                "architectures": ["Qwen3MoeForCausalLM"],
            }
        )

    async def server_info(self, request: Request) -> Response:
        """GET /server_info: what a router reads of it."""
        engine, options = self._engine, self._engine.options
        return json_response(
            {
                "model_path": str(options.model or "reference"),
                "tokenizer_path": str(engine.tokenizer.directory),
                "served_model_name": options.served_model_name,
                "context_length": options.context_length,
                "dtype": "float32",
                "random_seed": options.seed,
                "tp_size": 1,
                "dp_size": 1,
                "weight_version": engine.weight_version,
                "enable_return_routed_experts": True,
                "max_running_requests": options.max_running_requests,
                "max_total_num_tokens": options.max_cached_tokens,
                "status": "ready",
                "internal_states": [{"effective_max_running_requests_per_dp": options.max_running_requests}],
                "version": VERSION,
            }
        )

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        options = self._engine.options
        name = options.served_model_name
        model = {
            "id": name,
            "object": "model",
            "created": self._started_at,
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": options.context_length,
        }
        return json_response({"object": "list", "data": [model]})

    async def loads(self, request: Request) -> Response:
        """GET /v1/loads."""
        engine = self._engine
        load = {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_running_reqs": engine.running_requests,
            "num_waiting_reqs": engine.waiting_requests,
            "num_used_tokens": engine.used_tokens,
            "num_total_tokens": engine.used_tokens,
            "max_total_num_tokens": engine.options.max_cached_tokens,
            "max_running_requests": engine.options.max_running_requests,
            "token_usage": engine.used_tokens / max(1, engine.options.max_cached_tokens),
        }
        stamp = datetime.now(UTC).isoformat()
        return json_response(
            {"timestamp": stamp, "version": VERSION, "accelerator": None, "num_accelerators": 1, "loads": [load]}
        )

    async def metrics(self, request: Request) -> Response:
        """GET /metrics, in Prometheus' text format."""
        engine = self._engine
        label = f'{{model_name="{engine.options.served_model_name}"}}'
        gauges = {"num_running_reqs": engine.running_requests, "num_queue_reqs": engine.waiting_requests}
        counters = {"generation_tokens_total": engine.generated_tokens, "num_requests_total": engine.finished_requests}
        lines = [f"# TYPE sglang:{name} gauge\nsglang:{name}{label} {value}\n" for name, value in gauges.items()]
        lines += [f"# TYPE sglang:{name} counter\nsglang:{name}{label} {value}\n" for name, value in counters.items()]
        return Response("".join(lines), media_type="text/plain; version=0.0.4")

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: ``prompt`` is a text or a list of texts."""
        prompt: Any = (await read_body(request)).get("prompt")
        listed = fields.texts({"prompt": prompt}, "prompt")
        ids = [self._engine.tokenizer.encode(text) for text in listed]
        limit = self._engine.options.context_length
        if isinstance(prompt, str):
            return json_response({"tokens": ids[0], "count": len(ids[0]), "max_model_len": limit})
        return json_response({"tokens": ids, "count": [len(item) for item in ids], "max_model_len": limit})

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize: ``tokens`` is a list of ids or a list of lists."""
        body = await read_body(request)
        size = self._engine.model.config.vocab_size
        tokens, skip = body.get("tokens"), fields.flag(body, "skip_special_tokens", True)
        if isinstance(tokens, list) and tokens and isinstance(tokens[0], list):
            texts = [self._engine.tokenizer.decode(fields.ids(item, "tokens", size), skip) for item in tokens]
            return json_response({"text": texts})
        return json_response({"text": self._engine.tokenizer.decode(fields.ids(tokens, "tokens", size), skip)})


async def _finished(generations: list[Generation]) -> None:
    await asyncio.gather(*(generation.wait_finished() for generation in generations))
