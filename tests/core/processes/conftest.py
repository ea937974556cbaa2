"""Routers of several real processes, and connections that reach them all."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from processes_kit import MANY, Connect

from router_core.testing import RawClient


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Keep-alive connections to a port, which the kernel spreads over the processes."""
    async with contextlib.AsyncExitStack() as stack:

        async def connected(port: int, count: int = MANY) -> list[RawClient]:
            return [await stack.enter_async_context(RawClient(port)) for _ in range(count)]

        yield connected


@pytest.fixture
def start_two(start_process: Any) -> Callable[..., Awaitable[Any]]:
    """Starts a router of two processes."""

    async def start(*arguments: str, **options: Any) -> Any:
        return await start_process("--processes", "2", *arguments, **options)

    return start
