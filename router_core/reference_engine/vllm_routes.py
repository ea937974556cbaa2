"""The routes of vLLM 0.32 that describe an engine and turn text into ids."""

import time
import uuid

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router_core.reference_engine import fields
from router_core.reference_engine.chat_prompt import render_messages
from router_core.reference_engine.engine import Engine
from router_core.reference_engine.http import json_response, read_body

VERSION = "0.32.0"


class VllmRoutes:
    """Handlers over one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._started_at = int(time.time())
        self._permission_id = f"modelperm-{uuid.uuid4().hex[:16]}"

    def routes(self) -> list[Route]:
        """Return all routes."""
        return [
            Route("/health", self.empty_ok),
            Route("/ping", self.empty_ok, methods=["GET", "POST"]),
            Route("/version", self.version),
            Route("/load", self.load),
            Route("/metrics", self.metrics),
            Route("/v1/models", self.models),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
        ]

    async def empty_ok(self, request: Request) -> Response:
        """GET /health, GET or POST /ping."""
        return Response()

    async def version(self, request: Request) -> Response:
        """GET /version."""
        return json_response({"version": VERSION})

    async def load(self, request: Request) -> Response:
        """GET /load."""
        return json_response({"server_load": self._engine.running_requests + self._engine.waiting_requests})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics, in Prometheus' text format."""
        engine = self._engine
        label = f'{{engine="0",model_name="{engine.options.served_model_name}"}}'
        values = {
            "num_requests_running": ("gauge", engine.running_requests),
            "num_requests_waiting": ("gauge", engine.waiting_requests),
            "generation_tokens_total": ("counter", engine.generated_tokens),
        }
        lines = [f"# TYPE vllm:{name} {kind}\nvllm:{name}{label} {value}\n" for name, (kind, value) in values.items()]
        return Response("".join(lines), media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        options = self._engine.options
        permission = {
            "id": self._permission_id,
            "object": "model_permission",
            "created": self._started_at,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model = {
            "id": options.served_model_name,
            "object": "model",
            "created": self._started_at,
            "owned_by": "vllm",
            "root": str(options.model or options.served_model_name),
            "parent": None,
            "max_model_len": options.context_length,
            "permission": [permission],
        }
        return json_response({"object": "list", "data": [model]})

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: a ``prompt``, or ``messages`` with ``tools`` that the template renders."""
        body = await read_body(request)
        tokenizer = self._engine.tokenizer
        text = render_messages(body, "vllm") if "messages" in body else fields.text(body, "prompt")
        tokens = tokenizer.encode(text)
        wants_texts = fields.flag(body, "return_token_strs")
        return json_response(
            {
                "count": len(tokens),
                "max_model_len": self._engine.options.context_length,
                "tokens": tokens,
                "token_strs": [tokenizer.name_of(token_id) for token_id in tokens] if wants_texts else None,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize; special tokens are shown."""
        tokens = fields.ids((await read_body(request)).get("tokens"), "tokens", self._engine.model.config.vocab_size)
        return json_response({"prompt": self._engine.tokenizer.decode(tokens, skip_special_tokens=False)})
