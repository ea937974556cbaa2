"""A real engine on a loopback port, and what its answers must be."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
import pybase64
import pytest
from hypothesis import settings

from router_core.reference_engine import running_engine

# A busy machine is no failure: how long an example takes says nothing here.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")


@dataclass
class Client:
    """Speaks JSON to a running engine."""

    http: aiohttp.ClientSession
    served: Any

    @property
    def engine(self) -> Any:
        return self.served.engine

    async def post(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        async with self.http.post(path, json={} if body is None else body, headers=headers) as response:
            return response.status, _parsed(await response.read())

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(path) as response:
            return response.status, _parsed(await response.read())

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until the engine, which runs in this very loop, is in some state."""
        while not condition():  # noqa: ASYNC110 - the engine sets no event for tests
            await asyncio.sleep(0.001)

    async def generate(self, **body: Any) -> Any:
        status, answer = await self.post("/generate", body)
        assert status == 200, answer
        return answer

    async def events(self, path: str, body: Any, headers: dict[str, str] | None = None) -> list[Any]:
        """Return the JSON of all events; the last is checked to be [DONE]."""
        async with self.http.post(path, json=body, headers=headers) as response:
            text = (await response.read()).decode()
            assert response.status == 200, text
            assert response.headers["content-type"].startswith("text/event-stream")
        lines = text.split("\n\n")
        assert lines.pop() == ""
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except json.JSONDecodeError:
        return raw.decode()


@asynccontextmanager
async def _serving(**options: Any) -> AsyncIterator[Client]:
    async with running_engine(**options) as served, aiohttp.ClientSession(served.url) as http:
        yield Client(http, served)


@pytest.fixture
def serving() -> Callable[..., Any]:
    """Serves an engine with options of its own."""
    return _serving


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """An engine with default weights; requests without a seed repeat in each test."""
    async with _serving(seed=1) as client:
        yield client


@pytest.fixture
def decode_experts() -> Callable[..., Any]:
    """Decodes SGLang's base64 of int32."""

    def run(blob: str, num_layers: int = 4, top_k: int = 2) -> Any:
        return np.frombuffer(pybase64.b64decode(blob), dtype="<i4").reshape(-1, num_layers, top_k)

    return run
