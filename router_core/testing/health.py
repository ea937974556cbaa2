"""How a scripted worker answers health checks."""

import asyncio
from dataclasses import dataclass, field

from router_core.testing.connection import Connection
from router_core.testing.request import ScriptedRequest

HEALTH_PATHS = frozenset({"/health", "/ready", "/health_generate", "/get_model_info", "/v1/models"})


@dataclass(slots=True)
class Health:
    """What GET and HEAD on ``paths`` get; change it at any time: ``worker.health.status = 503``."""

    status: int = 200
    delay_s: float = 0.0
    hangs: bool = False
    """Whether checks are accepted and never answered."""
    paths: set[str] = field(default_factory=lambda: set(HEALTH_PATHS))

    def claims(self, request: ScriptedRequest) -> bool:
        return request.method in ("GET", "HEAD") and request.path in self.paths

    async def answer(self, connection: Connection, body: bytes) -> bool:
        if self.hangs:
            await connection.wait_for_leave()
            return False
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        return await connection.answer(body if self.status == 200 else b"", self.status)
