"""The server of one of several processes."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from router_core.app import Application
from router_core.garbage import Collector
from router_core.processes.handing import Gate, Handing
from router_core.server import Listeners, Server
from router_core.settings import RouterSettings


class ChildServer(Server):
    """The supervisor says when it ends, and publishes the port; connections come from other processes, too."""

    def __init__(self, application: Application, listeners: Listeners, handing: Handing) -> None:
        super().__init__(application, listeners)
        self._handing = handing
        self._collector = Collector(application.proxy.running)
        make: Callable[..., Any] = self.config.http  # type: ignore[assignment]  # `Server` gives no name
        self._make_protocol = make
        self.config.http = lambda **uvicorn: Gate(make(**uvicorn), handing)  # type: ignore[assignment]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if not self.should_exit:
            self._handing.open(self._protocol, self.server_state.tasks)

    def _protocol(self) -> Any:
        return self._make_protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._handing.close()
        self._collector.stop()
        await super().shutdown(sockets=sockets)

    def _publish(self, settings: RouterSettings) -> None:
        self._collector.start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in (signal.SIGINT, signal.SIGHUP):  # of a terminal: the supervisor has them too
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, frame: self.handle_exit(number, frame))
        yield
