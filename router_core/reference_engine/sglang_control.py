"""The routes of SGLang 0.5.23 that stop, pause and change an engine."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router_core.reference_engine import fields
from router_core.reference_engine.engine import PAUSE_MODES, Engine
from router_core.reference_engine.errors import WrongTypeError
from router_core.reference_engine.http import json_response, read_body
from router_core.reference_engine.weight_source import model_from


class SglangControl:
    """Handlers over one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        """Return all routes."""
        return [
            Route("/abort_request", self.abort_request, methods=["POST"]),
            Route("/flush_cache", self.flush_cache, methods=["GET", "POST"]),
            Route("/pause_generation", self.pause_generation, methods=["POST"]),
            Route("/continue_generation", self.continue_generation, methods=["POST"]),
            Route("/update_weight_version", self.update_weight_version, methods=["POST"]),
            Route("/update_weights_from_disk", self.update_weights_from_disk, methods=["POST"]),
        ]

    async def abort_request(self, request: Request) -> Response:
        """POST /abort_request: by the beginning of a rid, or all."""
        body = await read_body(request)
        if fields.flag(body, "abort_all"):
            self._engine.abort_all()
        elif fields.text(body, "rid"):
            self._engine.abort_matching(fields.text(body, "rid"))
        return Response()

    async def flush_cache(self, request: Request) -> Response:
        """GET or POST /flush_cache."""
        if not self._engine.flush_cache():
            return Response("Flush cache failed.\n", 400)
        return Response(
            "Cache flushed.\nPlease check backend logs for more details. "
            "(When there are running or waiting requests, the operation will not be performed.)\n"
        )

    async def pause_generation(self, request: Request) -> Response:
        """POST /pause_generation."""
        self._engine.pause(fields.choice(await read_body(request), "mode", PAUSE_MODES, "abort"))
        return json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, request: Request) -> Response:
        """POST /continue_generation."""
        self._engine.resume()
        return json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def update_weight_version(self, request: Request) -> Response:
        """POST /update_weight_version: another name for the same weights."""
        body = await read_body(request)
        version = fields.text(body, "new_version")
        if not version:
            raise WrongTypeError("new_version", "new_version must be a string that is not empty.")
        if fields.flag(body, "abort_all_requests", True):
            self._engine.abort_all()
        self._engine.weight_version = version
        return json_response(
            {"success": True, "message": f"Weight version updated to {version}", "new_version": version}
        )

    async def update_weights_from_disk(self, request: Request) -> Response:
        """POST /update_weights_from_disk; ``model_path`` is a checkpoint, or ``seed:N`` for other seeded weights."""
        body = await read_body(request)
        engine = self._engine
        path, version = fields.text(body, "model_path"), body.get("weight_version")
        if fields.flag(body, "abort_all_requests"):
            engine.abort_all()
        try:
            await engine.update_weights(lambda: model_from(path, engine.model.config, engine.tokenizer), version)
        except (OSError, ValueError) as error:
            return json_response(
                {"success": False, "message": f"Failed to get weights: {error}", "num_paused_requests": 0}, 400
            )
        message = "Succeeded to update model weights."
        if version is not None:
            message += f" Weight version updated to {version}."
        return json_response({"success": True, "message": message, "num_paused_requests": 0})
