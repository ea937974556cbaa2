"""Both data clients behind one router: what holds for one holds for the other."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest


@pytest.fixture(params=["h1", "aiohttp"])
def data_client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def route(serve: Callable[..., Awaitable[Any]], data_client: str) -> Callable[..., Awaitable[Any]]:
    """`serve` with this data client."""

    async def start(*workers: Any, router: dict[str, Any] | None = None, **options: Any) -> Any:
        return await serve(*workers, router={"data_client": data_client, **(router or {})}, **options)

    return start
