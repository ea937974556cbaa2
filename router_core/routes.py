"""The router's own routes of one generation: which paths are claimed, and the app that serves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

from router_core.admin import CLAIMED
from router_core.asgi import ASGIApp, Scope
from router_core.errors import Reject, RouterError
from router_core.failures import answer_for
from router_core.in_use import InUse
from router_core.outside import SHARED, path_of


class RouteTable:
    """Routes of the plugins (``added``) and of the core. ``claimed`` are first path segments that belong to them."""

    def __init__(self, added: Sequence[BaseRoute], core: Sequence[BaseRoute], in_use: InUse) -> None:
        starlette = Starlette(
            routes=[*added, *core],
            exception_handlers={RouterError: _refused, HTTPException: _refused_by_starlette, Exception: _refused},
        )
        starlette.router.redirect_slashes = False
        self.app = cast(ASGIApp, starlette)
        self._added = tuple(added)
        self.in_use = in_use
        paths = [path_of(route).strip("/").split("/") for route in added]
        own = (parts[0] for parts in paths if parts[0] not in SHARED)
        self.claimed = frozenset(name.encode() for name in (*CLAIMED, *own))
        shared = (path_of(route) for route, parts in zip(added, paths, strict=True) if parts[0] in SHARED)
        self.claimed_paths = frozenset(path.encode() for path in shared)
        nouns = (parts[2] for parts in paths if parts[0] == "sessions" and len(parts) > 2)
        self.session_nouns = frozenset(noun.encode() for noun in nouns)

    def is_of_plugin(self, scope: Scope) -> bool:
        """Whether the route of a request is a plugin's."""
        return any(route.matches(scope)[0] is Match.FULL for route in self._added)


# ------------------------------------------------------------------------------------------- errors of our own routes
async def _refused(request: Request, error: Exception) -> Response:
    return _response(error)


async def _refused_by_starlette(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return _response(error)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
    response = _response(Reject(error.status_code, code, f"{request.method} {request.url.path}: {error.detail}"))
    if error.status_code == 405:
        response.headers["allow"] = ", ".join(_allowed(request))
    return response


def _allowed(request: Request) -> list[str]:
    """Every method that some route of this path takes; Starlette names those of the first route alone."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in routes for method in getattr(route, "methods", None) or ()})


def _response(error: Exception) -> Response:
    answer = answer_for(error)
    return Response(
        answer.ready_body or b"",
        answer.status,
        {name: value for name, value in answer.headers if name != "content-length"},
    )
