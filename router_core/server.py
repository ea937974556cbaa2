"""Serves an application with uvicorn: binds first, says so, drains on SIGTERM, then cuts."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EADDRNOTAVAIL
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from router_core.access import is_loopback
from router_core.app import Application
from router_core.build import build_name
from router_core.config import Config
from router_core.errors import ConfigError
from router_core.fast_front import FastProtocol
from router_core.file_limit import grow_file_table, raise_file_limit
from router_core.garbage import Collector
from router_core.outbox import Outbox
from router_core.protocol import Protocol
from router_core.request_task import Lane
from router_core.settings import RouterSettings

log = logging.getLogger("router_core")

BACKLOG = 8192
KEEP_ALIVE_S = 75
CUT_S = 1.0
"""Seconds that requests get to end after they were cut."""
DRAIN_POLL_S = 0.1
SWITCH_INTERVAL_S = 0.001
"""How long a thread that computes keeps the loop waiting for the interpreter, which is once for each such thread."""
QUIET = (
    "ASGI callable returned without completing response.",
    "Unsupported upgrade request.",
    "No supported WebSocket",
    "Application startup failed. Exiting.",
    "Exception in 'lifespan' protocol",
)


HOST_AND_PORT = ("router.host", "router.port")


def bind(
    host: str, port: int, where: Callable[[str], str] = lambda _: "", keys: tuple[str, str] = HOST_AND_PORT
) -> socket.socket:
    """A listening socket. Raises ConfigError when port or address cannot be had; ``where`` a key was set is said."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError) as error:
        is_host = isinstance(error, socket.gaierror) or getattr(error, "errno", None) == EADDRNOTAVAIL
        key = keys[0] if is_host else keys[1]
        message = f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(message, where=where(key), key=key) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL under which a bound socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@dataclass(frozen=True, slots=True)
class Listeners:
    """The bound sockets: one for everything, or a second one for the router's own routes."""

    data: socket.socket
    admin: socket.socket | None = None

    @property
    def all(self) -> list[socket.socket]:
        return [self.data] if self.admin is None else [self.data, self.admin]

    def close(self) -> None:
        for listener in self.all:
            listener.close()


def listen(config: Config) -> Listeners:
    """Binds what is configured. Raises ConfigError."""
    settings = config.router
    data = bind(settings.host, settings.port, config.where)
    if settings.admin_port is None:
        return Listeners(data)
    try:
        keys = ("router.admin_host" if settings.admin_host else "router.host", "router.admin_port")
        admin = bind(settings.admin_host or settings.host, settings.admin_port, config.where, keys)
    except BaseException:
        data.close()
        raise
    return Listeners(data, admin)


class Server(uvicorn.Server):
    """uvicorn's server around one application; ``ready`` is set once requests are taken."""

    def __init__(self, application: Application, listeners: Listeners) -> None:
        self._application = application
        self._listeners = listeners
        outbox = Outbox()
        protocol = partial(FastProtocol, application.front, Lane()) if application.is_fast else Protocol
        application.access.opened(listeners.data, listeners.admin)
        super().__init__(
            uvicorn.Config(
                application.app,
                http=partial(protocol, outbox),  # type: ignore[arg-type]
                ws="none",
                loop="auto",
                lifespan="on",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self.ready = asyncio.Event()
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Task[Any] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop, self._starting = asyncio.get_running_loop(), asyncio.current_task()
        try:
            await super().startup(sockets=sockets)
        except SystemExit:  # uvicorn's way of saying that the application did not start
            raise self._application.start_error or ConfigError("the router did not start") from None
        self._starting = None
        if not self.should_exit:
            self._publish(self._application.config.router)
            self.ready.set()

    def stop(self) -> None:
        """Ends `run_here`: refuses what is new, lets what runs finish, then cuts it."""
        self.should_exit = True
        self._woken.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._woken.set)
            if self._starting is not None:  # a start that hangs must end too
                self._loop.call_soon_threadsafe(self._starting.cancel)

    async def main_loop(self) -> None:
        if not self.should_exit:
            await self._woken.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """The stages of an end: no new connection, the grace, the cut, and the application's own end.

        After SIGTERM that is how this process was meant to end: its exit status is 0.
        """
        proxy, grace_s = self._application.proxy, self._application.config.router.shutdown_grace_s
        self._application.begin_stop()
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if proxy.running:
            log.info("stopping: %d requests may go on for %g s (router.shutdown_grace_s)", len(proxy.running), grace_s)
        if not await self._drained(grace_s):
            log.warning("stopping: %d requests are cut", len(proxy.running))
            proxy.cut()
            if not await self._drained(CUT_S):
                tasks = list(self.server_state.tasks)
                for task in tasks:
                    task.cancel()
                await self._drained(CUT_S)
        await self.lifespan.shutdown()
        self._captured_signals = [number for number in self._captured_signals if number != signal.SIGTERM]

    async def _drained(self, timeout_s: float) -> bool:
        """Waits until every request has been answered and every connection has been closed; a second Ctrl-C ends it."""
        end = time.monotonic() + timeout_s
        while True:
            await asyncio.sleep(0)  # connections that were told to close do it in the next round
            tasks = set(self.server_state.tasks)
            if not tasks and not self.server_state.connections:
                return True
            left = end - time.monotonic()
            if left <= 0 or self.force_exit:
                return False
            if tasks:
                await asyncio.wait(tasks, timeout=min(left, DRAIN_POLL_S))
            else:
                await asyncio.sleep(min(left, DRAIN_POLL_S / 10))

    def _publish(self, settings: RouterSettings) -> None:
        publish(self._listeners, settings, workers=len(self._application.workers))

    async def run_here(self) -> None:
        """Serves in the running loop until ``should_exit``."""
        await self.serve(sockets=self._listeners.all)


class GuestServer(Server):
    """The server in a loop that is somebody else's, who also gets the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _ProcessServer(Server):
    """The server of a process that is nothing else."""

    def __init__(self, application: Application, listeners: Listeners) -> None:
        super().__init__(application, listeners)
        self._collector = Collector(application.proxy.running)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if hasattr(signal, "SIGHUP"):  # not on Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        self._collector.start()
        sys.setswitchinterval(SWITCH_INTERVAL_S)

    def _reload(self) -> None:
        self._application.reload_soon()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._collector.stop()
        await super().shutdown(sockets=sockets)
        if self.server_state.tasks:
            log.error("stopping: %d requests do not end, whatever they are told", len(self.server_state.tasks))
            os._exit(1)  # everything else has been shut down; asyncio would wait for them for ever


class _Quiet(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(QUIET)


def set_up_logging(level: str, who: str = "") -> None:
    """One line an event on standard error; uvicorn's remarks about what is our doing are left out.

    ``who`` tells the lines of this process from those of others.
    """
    logging.basicConfig(
        level=getattr(logging, level.upper()), format=f"%(asctime)s %(levelname)-7s {who}%(name)s: %(message)s"
    )
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.addFilter(_Quiet())
    uvicorn_log.setLevel(max(logging.WARNING, logging.getLogger().level))


def publish(listeners: Listeners, settings: RouterSettings, *, workers: int) -> None:
    """Says where the router is: in the log, and in the ready file."""
    listener, admin = listeners.data, listeners.admin
    url = url_of(listener)
    host, port = listener.getsockname()[:2]
    log.info("router-core (%s) listens on %s, workers: %d", build_name(), url, workers)
    if admin is not None:
        log.info("the router's own routes are at %s", url_of(admin))
    if not is_loopback(admin or listener) and settings.admin_token is None:
        log.warning(
            "ANYBODY WHO REACHES %s MAY CONTROL THIS ROUTER AND ITS WORKERS: set a token (ROUTER__ADMIN_TOKEN), or "
            "give its own routes an address that only operators reach (router.admin_host, router.admin_port)",
            url_of(admin or listener),
        )
    if settings.ready_file is not None:
        more = {} if admin is None else {"admin_url": url_of(admin)}
        line = json.dumps({"host": host, "port": port, "url": url, "pid": os.getpid(), **more})
        whole = _part_of(settings.ready_file)
        whole.write_text(line + "\n", encoding="utf-8")
        whole.replace(settings.ready_file)


def _part_of(ready_file: str) -> Path:
    return Path(ready_file + ".part")


def clear_ready_file(path: str | None, where: str) -> None:
    """One of an earlier run must not be taken for ours. Raises ConfigError where it could not be written."""
    if path is None:
        return
    try:
        _part_of(path).write_text("", encoding="utf-8")
        _part_of(path).unlink()
        Path(path).unlink(missing_ok=True)
    except OSError as error:
        message = f"cannot be written: {error.strerror or error}: {path!r}"
        raise ConfigError(message, where=where, key="router.ready_file") from None


def serve(application: Application) -> int:
    """Binds and serves until a signal; returns the exit status. Raises ConfigError."""
    config = application.config
    settings = config.router
    set_up_logging(settings.log_level)
    clear_ready_file(settings.ready_file, config.where("router.ready_file"))
    listeners = listen(config)
    raise_file_limit(settings.max_held_requests)
    grow_file_table(settings.max_held_requests)
    server = _ProcessServer(application, listeners)
    try:
        server.run(sockets=listeners.all)
    except asyncio.CancelledError:
        log.warning("stopped while it was starting")
        return 1
    return 0 if server.started else 3
