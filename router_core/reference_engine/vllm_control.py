"""The routes of vLLM 0.32 that stop, pause and change an engine."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router_core.reference_engine import fields
from router_core.reference_engine.engine import Engine
from router_core.reference_engine.errors import InvalidFieldError
from router_core.reference_engine.http import json_response, read_body
from router_core.reference_engine.weight_source import model_from

_PAUSE_MODES = ("abort", "wait", "keep")


class VllmControl:
    """Handlers over one engine; vLLM takes modes from the query."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_sleeping = False

    def routes(self) -> list[Route]:
        """Return all routes."""
        return [
            Route("/pause", self.pause, methods=["POST"]),
            Route("/resume", self.resume, methods=["POST"]),
            Route("/is_paused", self.is_paused),
            Route("/sleep", self.sleep, methods=["POST"]),
            Route("/wake_up", self.wake_up, methods=["POST"]),
            Route("/is_sleeping", self.is_sleeping),
            Route("/abort_requests", self.abort_requests, methods=["POST"]),
            Route("/reset_prefix_cache", self.reset_prefix_cache, methods=["POST"]),
            Route("/update_weight_version", self.update_weight_version, methods=["POST"]),
            Route("/update_weights", self.update_weights, methods=["POST"]),
            Route("/weight_info", self.weight_info),
        ]

    async def pause(self, request: Request) -> Response:
        """POST /pause?mode=abort|wait|keep."""
        await self._pause(_mode(request))
        return json_response({"status": "paused"})

    async def _pause(self, mode: str) -> None:
        if mode == "wait":
            await self._engine.drain()
        self._engine.pause("abort" if mode == "abort" else "in_place")

    async def resume(self, request: Request) -> Response:
        """POST /resume."""
        self._engine.resume()
        return json_response({"status": "resumed"})

    async def is_paused(self, request: Request) -> Response:
        """GET /is_paused."""
        return json_response({"is_paused": self._engine.is_paused})

    async def sleep(self, request: Request) -> Response:
        """POST /sleep?level=1&mode=abort: a pause that also forgets all keys and values."""
        level = request.query_params.get("level", "1")
        if level not in ("0", "1", "2"):
            raise InvalidFieldError("level", f"level must be 0, 1 or 2, got {level!r}.")
        await self._pause(_mode(request))
        self._engine.prefix_cache.clear()
        self._is_sleeping = True
        return json_response({"status": "sleeping", "level": int(level)})

    async def wake_up(self, request: Request) -> Response:
        """POST /wake_up; with ``tags`` it is awake at once too."""
        self._is_sleeping = False
        self._engine.resume()
        return json_response({"status": "awake", "tags": request.query_params.getlist("tags") or None})

    async def is_sleeping(self, request: Request) -> Response:
        """GET /is_sleeping."""
        return json_response({"is_sleeping": self._is_sleeping})

    async def abort_requests(self, request: Request) -> Response:
        """POST /abort_requests: those of ``request_ids``, as the client knows them; without any, all."""
        rids = fields.texts(await read_body(request), "request_ids")
        aborted = self._engine.abort_ids(rids) if rids else self._engine.abort_all()
        return json_response({"status": "aborted", "aborted": len(rids) or aborted})

    async def reset_prefix_cache(self, request: Request) -> Response:
        """POST /reset_prefix_cache."""
        return json_response({"success": self._engine.flush_cache()})

    async def update_weight_version(self, request: Request) -> Response:
        """POST /update_weight_version."""
        version = fields.text(await read_body(request), "new_version")
        if not version:
            raise InvalidFieldError("new_version", "new_version must be a string that is not empty.")
        self._engine.weight_version = version
        return json_response({"success": True, "new_version": version})

    async def update_weights(self, request: Request) -> Response:
        """POST /update_weights; a real server is told where tensors come from, this one ``update_info.model_path``."""
        body = await read_body(request)
        path = fields.text(fields.mapping(body, "update_info"), "model_path")
        version: Any = body.get("weight_version")
        engine = self._engine
        try:
            await engine.update_weights(lambda: model_from(path, engine.model.config, engine.tokenizer), version)
        except (OSError, ValueError) as error:
            raise InvalidFieldError("update_info.model_path", f"No weights from {path!r}: {error}") from None
        return json_response({"message": "Weights updated"})

    async def weight_info(self, request: Request) -> Response:
        """GET /weight_info."""
        return json_response({"weight_version": self._engine.weight_version})


def _mode(request: Request) -> str:
    mode = request.query_params.get("mode", "abort")
    if mode not in _PAUSE_MODES:
        raise InvalidFieldError("mode", f"mode must be abort, wait or keep, got {mode!r}.")
    return mode
