"""One of several processes: an ordinary router, its switch, and its link to the supervisor."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import uvloop

from router_core.app import Application
from router_core.errors import ConfigError
from router_core.file_limit import grow_file_table
from router_core.processes.asking import Asking
from router_core.processes.child_server import ChildServer
from router_core.processes.counts import CountedWorker, Counts
from router_core.processes.forward import Forwarder
from router_core.processes.handing import Handing
from router_core.processes.link import Link, read_first
from router_core.processes.messages import (
    Closed,
    Failed,
    Go,
    Hello,
    Listen,
    Opened,
    Peers,
    Ping,
    Pong,
    Ready,
    Run,
    Setup,
    Started,
    Stop,
    Told,
)
from router_core.processes.orphan import watch_supervisor
from router_core.processes.ownership import Owners
from router_core.processes.peer_server import PeerServer
from router_core.processes.running import Running
from router_core.processes.snapshot import adopt
from router_core.processes.switch import Switch
from router_core.server import Listeners, set_up_logging
from router_core.types import Session

log = logging.getLogger("router_core")

LOOK_AGAIN_S = 0.02
"""Seconds after which held requests learn that there is room for them because of what another process did."""


class Child:
    """Runs until the supervisor says so, or is gone."""

    def __init__(self, setup: Setup, link: Link, application: Application) -> None:
        self._setup = setup
        self._link = link
        self._application = application
        self._owners = Owners(setup.processes, setup.slot)
        self._asking = Asking(link)
        self._is_started = asyncio.Event()
        self._may_listen = asyncio.Event()
        self._forwarder = Forwarder(setup.secret)
        self._address = f"\0router-core-{secrets.token_hex(8)}"
        """No file: it is gone with the process."""
        self._switch: Switch
        self._running: Running
        self._peer_server: PeerServer
        self._server: ChildServer
        self._states: Mapping[str, Any] = {}

    async def run(self) -> int:
        self._link.send(Hello(self._address))
        try:
            go = await self._link.receive()
        except EOFError:
            return 1
        if not isinstance(go, Go):
            return 0
        self._join(go)
        reader = asyncio.create_task(self._listen_to_supervisor(), name="supervisor")
        looker = asyncio.create_task(self._look_again(), name="room in other processes")
        server = asyncio.create_task(self._server.run_here(), name="server")
        ready = asyncio.create_task(self._server.ready.wait(), name="ready")
        try:
            await asyncio.wait({server, ready}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                self._link.send(Ready())
            await server
        except ConfigError as error:
            self._link.send(Failed(error.message, error.where, error.key))
            return 2
        finally:
            for task in (reader, looker, ready):
                task.cancel()
            self._peer_server.close()
            self._forwarder.close()
        return 0

    def _join(self, go: Go) -> None:
        """Everything is put together; nothing is served yet."""
        setup, application = self._setup, self._application
        settings = setup.config.router
        if go.handed is not None:
            adopt(application.workers, go.handed.workers)
            self._states = go.handed.plugins
        sessions = application.sessions
        sessions.new_id, sessions.is_ours = self._owners.new_id, self._owners.is_ours
        sessions.on_open, sessions.on_end = self._opened, lambda session: self._link.send(Closed(session.id))
        application.tell, application.reload_all = self._asking.tell, self._asking.reload
        self._switch = Switch(
            application.app,
            application.front,
            self._owners,
            self._forwarder,
            session_headers=settings.session_headers,
            ask=self._asking.ask,
            before_listening=self._before_listening,
            lost=go.lost,
        )
        application.app = self._switch
        data = socket.socket(fileno=setup.data_fd)
        admin = socket.socket(fileno=setup.admin_fd) if setup.admin_fd is not None else None
        giving = [socket.socket(fileno=fd) for fd in setup.giving_fds]
        handing = Handing(socket.socket(fileno=setup.taking_fd), giving, self._switch.other_owner)
        self._server = ChildServer(application, Listeners(data, admin), handing)
        self._running = Running(setup.slot, application, self._switch, self._link, stop=self._server.stop)
        self._peer_server = PeerServer(self._switch.from_peer, setup.secret, self._server.server_state.tasks)

    async def _before_listening(self) -> None:
        """Plugins have started: first all that the others know, and what they ran meanwhile."""
        self._application.outside.take_over(self._states)
        self._is_started.set()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._address)
        await self._peer_server.listen(listener)
        self._link.send(Started())
        await self._may_listen.wait()

    def _opened(self, session: Session) -> None:
        self._switch.lost.pop(session.id, None)
        self._link.send(Opened(session.id))

    # -------------------------------------------------------------------------------------------- from the supervisor
    async def _listen_to_supervisor(self) -> None:
        try:
            while True:
                message = await self._link.receive()
                if isinstance(message, Run):
                    await self._is_started.wait()
                    self._running.start(message)
                    await asyncio.sleep(0)  # up to its first wait before the next one
                elif isinstance(message, Told):
                    self._asking.take(message)
                elif isinstance(message, Ping):
                    self._link.send(Pong())
                elif isinstance(message, Peers):
                    self._forwarder.peers = message.addresses
                elif isinstance(message, Listen):
                    self._may_listen.set()
                elif isinstance(message, Stop):
                    self._end()
        except EOFError:
            log.error("process %d: the supervisor is gone, this process stops", self._setup.slot)
            self._end()

    def _end(self) -> None:
        self._may_listen.set()
        self._server.stop()
        self._asking.end()

    async def _look_again(self) -> None:
        """Who is held here tries again now and then: another process may have made room.

        Each time: between two looks room may have come, gone and come again, which no two sums would show.
        """
        holds = self._application.holds
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            if len(holds):
                holds.wake_for_workers()


def main(fd: int) -> int:
    """Builds the router as the supervisor says, and runs it."""
    end = socket.socket(fileno=fd)
    try:
        setup: Setup = read_first(end)
    except EOFError:
        return 1
    grow_file_table(setup.config.router.max_held_requests)  # before a thread is started
    watch_supervisor(end, setup.config.router)
    set_up_logging(setup.config.router.log_level, f"[{setup.slot}] ")
    sys.path.insert(0, "")  # middleware paths may name modules of the working directory
    counts = Counts(setup.counts_fd, setup.processes, setup.slot)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_main(setup, end, counts))


async def _main(setup: Setup, end: socket.socket, counts: Counts) -> int:
    link = Link(end)
    try:
        application = Application(
            setup.config, make_worker=partial(CountedWorker, counts), read_config=lambda: setup.config
        )
    except ConfigError as error:
        link.send(Failed(error.message, error.where, error.key))
        return 2
    application.generation.number = setup.generation
    return await Child(setup, link, application).run()
