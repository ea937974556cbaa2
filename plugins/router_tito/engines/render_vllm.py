"""Chat through vLLM's own three calls (0.32, ``--enable-scale-out``): it renders, generates from ids, and parses.

    /v1/chat/completions/render --sampling params, ids--> ours put in --> /inference/v1/generate
    client <-- message, deltas <-- /v1/chat/completions/derender <-- ids, logprobs

A prompt that begins anew is the worker's own rendering; one that goes on from the trace holds the exact ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from router_core import ControlAnswer, Reject, Request, Worker

from .chat import are_ids
from .interface import Ask, EngineServices
from .render_reader import Derenderer, RenderReader
from .translate_request import top_logprobs

Json = dict[str, Any]

RENDER = "/v1/chat/completions/render"
GENERATE = b"/inference/v1/generate"
LENGTHS = ("max_tokens", "max_completion_tokens")


class VllmRender:
    """Engine for a vLLM server that renders and parses for others."""

    def __init__(self, services: EngineServices) -> None:
        self._services = services

    async def write(self, ask: Ask, request: Request, worker: Worker) -> None:
        rendered = await self._render(ask, worker)
        ids, sampling = rendered.get("token_ids"), rendered.get("sampling_params")
        if not are_ids(ids) or not isinstance(sampling, dict):
            raise Reject(502, "render_failed", f"{worker.url}{RENDER} answered without ids or sampling parameters")
        given = list(ask.prompt_ids) if ask.is_continued and ask.prompt_ids is not None else ids
        call = {
            **rendered,
            "token_ids": given,
            "token_offsets": None,
            "sampling_params": {
                **sampling,
                **self._length(ask, sampling.get("max_tokens"), len(ids) - len(given)),
                "logprobs": top_logprobs(ask.body),
            },
            "return_token_ids": True,
        }
        if ask.is_streamed:
            call |= {"stream": True, "stream_options": {"include_usage": True}}
        request.path = GENERATE
        request.set_body(orjson.dumps(call))

    def reader(self, ask: Ask, worker: Worker) -> RenderReader:
        return RenderReader(ask, Derenderer(self._services, worker, ask))

    def _length(self, ask: Ask, most: Any, shorter_by: int) -> Json:
        """Where nobody said a length, the worker's is the room behind its own rendering: ours leaves another."""
        if not isinstance(most, int) or any(ask.body.get(key) is not None for key in LENGTHS):
            return {}
        room = max(most + shorter_by, 1)
        limit = self._services.default_max_tokens
        return {"max_tokens": room if limit is None else min(room, limit)}

    async def _render(self, ask: Ask, worker: Worker) -> Json:
        """What the worker would generate from for this chat. Raises Reject with the worker's own words."""
        wanted = {key: value for key, value in ask.body.items() if key not in ("stream", "stream_options")}
        body = orjson.dumps({**wanted, "logprobs": True})
        services = self._services
        headers = {"content-type": "application/json"}
        answer = await services.control.call(
            worker, "POST", RENDER, timeout_s=services.timeout_s, body=body, headers=headers
        )
        told = answer.json()
        if answer.is_ok and isinstance(told, dict):
            return told
        raise _refusal(answer, told, worker)


def _refusal(answer: ControlAnswer, told: Any, worker: Worker) -> Reject:
    if answer.status in (404, 405) and _error(told).get("message") in (None, "Not Found", "Method Not Allowed"):
        return Reject(
            501,
            "unsupported_mode",
            f"{worker.url} has no {RENDER}: start vLLM with --enable-scale-out, or set plugins.tito.mode",
        )
    error = _error(told)
    message = str(error.get("message") or answer.error or f"status {answer.status}")
    if 400 <= answer.status < 500:
        param = error.get("param")
        return Reject(400, "render_refused", message, param if isinstance(param, str) else None)
    return Reject(502, "render_failed", f"{worker.url}{RENDER}: {message}")


def _error(told: Any) -> Mapping[str, Any]:
    error = told.get("error") if isinstance(told, dict) else None
    return error if isinstance(error, Mapping) else {}
