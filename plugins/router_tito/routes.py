"""``GET /sessions/capabilities``: what this router can capture, and how."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from .capture import Capture
from .engines import ENGINES
from .exporters import ENCODINGS, PICKERS, composer_names
from .matcher import BUILT_IN
from .session_options import KEYS
from .settings import TitoSettings


class CapabilityRoutes:
    """The route, over the settings and the capture that holds at the time of asking."""

    def __init__(self, settings: TitoSettings) -> None:
        self._settings = settings
        self.capture: Capture | None = None

    def routes(self) -> list[BaseRoute]:
        return [Route("/sessions/capabilities", self.show, methods=["GET"])]

    async def show(self, request: Request) -> Response:
        return JSONResponse(self.describe())

    def describe(self) -> dict[str, Any]:
        """As JSON values."""
        settings = self._settings
        return {
            "mode": settings.mode,
            "modes": {mode: sorted(kinds) for mode, kinds in ENGINES.items()},
            "session_keys": list(KEYS),
            "samples": {
                "formats": list(composer_names()),
                "pickers": list(PICKERS),
                "encodings": list(ENCODINGS),
                "auxiliary_rules": list(self._settings.auxiliary_rules),
            },
            "matchers": {"active": settings.matchers, "built_in": list(BUILT_IN)},
            "thinking": settings.thinking,
            "retry": settings.retry,
            "coalesce_grace_s": settings.coalesce_grace_s,
            "implicit_sessions": settings.implicit_sessions,
            "on_uncapturable": settings.on_uncapturable,
            "routed_experts": settings.routed_experts,
            "debug": settings.debug,
            "tokenizer": self._tokenizer(),
        }

    def _tokenizer(self) -> dict[str, Any]:
        source = self.capture.renderers if self.capture is not None else None
        report = source.report if source is not None else None
        return {
            "name": self._settings.tokenizer,
            "is_ready": source is not None and source.ready is not None,
            "fault": source.fault if source is not None else None,
            "self_test": report.to_dict() if report is not None else None,
        }
