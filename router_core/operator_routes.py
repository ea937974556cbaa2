"""What an operator asks of the router itself: which plugins run, and that it reads its configuration anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route


class OperatorRoutes:
    """``GET /plugins`` and ``POST /admin/reload``."""

    def __init__(self, describe: Callable[[], dict[str, Any]], reload: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._describe = describe
        self._reload = reload

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/plugins", self.plugins, methods=["GET"]),
            Route("/admin/reload", self.reload, methods=["POST"]),
        ]

    async def plugins(self, request: Request) -> Response:
        return _json(self._describe())

    async def reload(self, request: Request) -> Response:
        return _json(await self._reload())


def _json(told: dict[str, Any]) -> Response:
    return Response(orjson.dumps(told), media_type="application/json")
