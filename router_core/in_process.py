"""A router inside a program that has a loop of its own: a generator, a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from router_core.app import Application
from router_core.clock import Clock
from router_core.config import Config, load
from router_core.router import Router
from router_core.server import GuestServer, bind, url_of


class RunningRouter:
    """A served router: its ``url``, its ``port``, and its inside for whoever shares the process."""

    def __init__(self, application: Application, url: str, port: int) -> None:
        self.application = application
        self.url = url
        self.port = port

    @property
    def router(self) -> Router:
        """What plugins are given in `startup`: workers, sessions, clock."""
        return self.application.router


@asynccontextmanager
async def serving(config: Mapping[str, Any], *, clock: Clock | None = None) -> AsyncIterator[RunningRouter]:
    """Serves a router in the running loop until the block ends, which stops it as SIGTERM would.

    ``config`` has the tables of plugins.toml (``enabled``, ``router``, ``plugins``, ``profiles``); no file and no
    environment is read, and where no port is given a free one is taken. ``POST /admin/reload`` reads the mapping anew.
    Signals are left to whoever runs the loop.
    Raises ConfigError before anything serves.

    >>> async with serving({"enabled": ["least_inflight"], "router": {"workers": [url]}}) as running:
    ...     print(running.url)
    """

    def read() -> Config:
        return load({**config, "router": {"port": 0, **config.get("router", {})}}, file="", environment={})

    application = Application(read(), clock=clock, read_config=read)
    listener = bind(application.config.router.host, application.config.router.port)
    server = GuestServer(application, listener)
    task = asyncio.create_task(server.run_here(), name="router")
    ready = asyncio.create_task(server.ready.wait(), name="router is ready")
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
            raise RuntimeError("the router did not start")
        yield RunningRouter(application, url_of(listener), listener.getsockname()[1])
    finally:
        ready.cancel()
        server.stop()
        try:
            await task
        finally:
            listener.close()
