"""A router inside a program that has a loop of its own: a generator, a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from router_core.app import Application
from router_core.clock import Clock
from router_core.config import Config, load
from router_core.errors import ConfigError
from router_core.router import Router
from router_core.server import GuestServer, Listeners, listen, url_of


class RunningRouter:
    """A served router: its ``url``, its ``port``, and its inside for whoever shares the process."""

    def __init__(self, application: Application, listeners: Listeners) -> None:
        self.application = application
        self.listeners = listeners
        self.url = url_of(listeners.data)
        self.port: int = listeners.data.getsockname()[1]
        admin = listeners.admin or listeners.data
        self.admin_url = url_of(admin)
        """Where the router's own routes are: the same, unless they have an address of their own."""
        self.admin_port: int = admin.getsockname()[1]

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

    settings = read()
    if settings.router.processes > 1:
        message = "a router inside another program is one process: `router-core serve` starts several"
        raise ConfigError(message, key="router.processes")
    application = Application(settings, clock=clock, read_config=read)
    listeners = listen(application.config)
    server = GuestServer(application, listeners)
    task = asyncio.create_task(server.run_here(), name="router")
    ready = asyncio.create_task(server.ready.wait(), name="router is ready")
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
            raise RuntimeError("the router did not start")
        yield RunningRouter(application, listeners)
    finally:
        ready.cancel()
        server.stop()
        try:
            await task
        finally:
            listeners.close()
