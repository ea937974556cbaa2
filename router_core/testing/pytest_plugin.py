"""Fixtures for tests of routers and plugins: ``pytest_plugins = ["router_core.testing.pytest_plugin"]``.

They are not registered by themselves. They need pytest-asyncio (the extra ``test``).
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest_asyncio

from router_core.testing.engines import EngineName
from router_core.testing.worker import ScriptedWorker

StartWorkers = Callable[..., Awaitable[list[ScriptedWorker]]]


@pytest_asyncio.fixture
async def scripted_worker() -> AsyncIterator[ScriptedWorker]:
    """One running ScriptedWorker that speaks SGLang. What its handlers raised fails the test at its end."""
    async with ScriptedWorker() as worker:
        yield worker


@pytest_asyncio.fixture
async def scripted_workers() -> AsyncIterator[StartWorkers]:
    """Starts as many as a test wants: ``first, second = await scripted_workers(2, "vllm")``."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(count: int = 2, engine: EngineName = "sglang") -> list[ScriptedWorker]:
            return [await stack.enter_async_context(ScriptedWorker(engine)) for _ in range(count)]

        yield start
