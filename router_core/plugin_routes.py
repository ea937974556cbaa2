"""``GET /plugins``: what runs in this process, in which order, and what went wrong with it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from router_core.plan import LoadedPlugin
from router_core.plans import Plans


class PluginRoutes:
    """The plugins of this process as a client sees them."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans

    def routes(self) -> list[BaseRoute]:
        return [Route("/plugins", self.list, methods=["GET"])]

    async def list(self, request: Request) -> Response:
        told = [self._describe(order, plugin) for order, plugin in enumerate(self._plans.loaded, 1)]
        return JSONResponse({"plugins": told, "profiles": self._plans.profile_names, "total": len(told)})

    def _describe(self, order: int, plugin: LoadedPlugin) -> dict[str, Any]:
        state = "on" if plugin.name in self._plans.default.names else "available"
        return {
            "name": plugin.name,
            "order": order,
            "state": "switched_off" if plugin.is_switched_off else state,
            "version": plugin.version,
            "distribution": plugin.distribution,
            "hooks": list(plugin.hooks),
            "on_error": plugin.on_error,
            "errors": dict(plugin.errors),
        }
