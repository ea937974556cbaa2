"""One of several processes: an ordinary router, its switch, and its link to the supervisor."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import secrets
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvloop

from router_core.app import Application
from router_core.errors import ConfigError, Reject
from router_core.generation import Generation
from router_core.processes.counts import CountedWorker, Counts
from router_core.processes.forward import Forwarder
from router_core.processes.messages import (
    Abandon,
    Ask,
    Closed,
    Commit,
    Failed,
    Fault,
    Go,
    Handed,
    HandOver,
    Hello,
    Link,
    Listen,
    Opened,
    Peers,
    Prepare,
    Ran,
    Ready,
    Refused,
    Reload,
    RouteCall,
    Run,
    Setup,
    Started,
    Stop,
    Tell,
    Told,
    read_first,
)
from router_core.processes.ownership import Owners
from router_core.processes.peer_server import PeerServer
from router_core.processes.snapshot import adopt, take_snapshot
from router_core.processes.switch import Switch
from router_core.server import GC_THRESHOLDS, Listeners, Server, set_up_logging
from router_core.settings import RouterSettings
from router_core.types import Session

log = logging.getLogger("router_core")

LOOK_AGAIN_S = 0.02
"""Seconds after which held requests learn that there is room for them because of what another process did."""


class ChildServer(Server):
    """The server of one of several processes: the supervisor says when it ends, and publishes the port."""

    def _publish(self, settings: RouterSettings) -> None:
        gc.collect()
        gc.freeze()  # what lives until the end need not be looked at again and again
        gc.set_threshold(*GC_THRESHOLDS)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in (signal.SIGINT, signal.SIGHUP):  # of a terminal: the supervisor has them too
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, frame: self.handle_exit(number, frame))
        yield


class Child:
    """Runs until the supervisor says so, or is gone."""

    def __init__(self, setup: Setup, link: Link, application: Application) -> None:
        self._setup = setup
        self._link = link
        self._application = application
        self._owners = Owners(setup.processes, setup.slot)
        self._asked: dict[int, asyncio.Future[Mapping[int, Any]]] = {}
        self._ids = itertools.count()
        self._is_started = asyncio.Event()
        self._may_listen = asyncio.Event()
        self._prepared: Generation | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._forwarder = Forwarder(setup.secret)
        self._address = f"\0router-core-{secrets.token_hex(8)}"
        """No file: it is gone with the process."""
        self._switch: Switch
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
        application.tell, application.reload_all = self._tell, self._reload
        self._switch = Switch(
            application.app,
            application.front,
            self._owners,
            self._forwarder,
            session_headers=settings.session_headers,
            ask=self._ask,
            before_listening=self._before_listening,
            lost=go.lost,
        )
        application.app = self._switch
        data = socket.socket(fileno=setup.data_fd)
        admin = socket.socket(fileno=setup.admin_fd) if setup.admin_fd is not None else None
        self._server = ChildServer(application, Listeners(data, admin))
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
                    self._start(message)
                    await asyncio.sleep(0)  # up to its first wait before the next one
                elif isinstance(message, Told):
                    if (future := self._asked.pop(message.id, None)) is not None and not future.done():
                        future.set_result(message.answers)
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
        for future in self._asked.values():
            if not future.done():
                future.set_exception(Reject(503, "shutting_down", "the router is stopping", retry_after_s=1))

    def _start(self, message: Run) -> None:
        task = asyncio.create_task(self._run(message), name=f"run {message.serial}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, message: Run) -> None:
        try:
            answer = await self._answer(message.what)
        except Reject as refusal:
            answer = Refused(refusal.status, refusal.code, refusal.message, refusal.param)
        except Exception as error:
            log.exception("process %d could not run %.200r", self._setup.slot, message.what)
            answer = Fault(repr(error))
        self._link.send(Ran(message.serial, answer))

    async def _answer(self, what: Any) -> Any:
        application = self._application
        if isinstance(what, RouteCall):
            return await self._switch.run(what)
        if isinstance(what, Tell):
            return await application.outside.told(what.plugin, what.message)
        if isinstance(what, HandOver):
            return Handed(take_snapshot(application.workers), application.outside.hand_over())
        if isinstance(what, Prepare):
            self._prepared = await application.prepare(lambda: what.config)
            return None
        prepared, self._prepared = self._prepared, None
        if isinstance(what, Commit):
            if prepared is None:
                log.error("process %d did not follow a reload: it is replaced", self._setup.slot)
                self._server.stop()
                return None
            return application.commit(prepared)
        if isinstance(what, Abandon):
            if prepared is not None:
                await application.abandon(prepared)
            return None
        raise TypeError(f"nobody runs {what!r}")

    # ---------------------------------------------------------------------------------------------- to the supervisor
    async def _ask(self, what: Any) -> Mapping[int, Any]:
        number = next(self._ids)
        future: asyncio.Future[Mapping[int, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        self._link.send(Ask(number, what))
        try:
            return await future
        finally:
            self._asked.pop(number, None)

    async def _tell(self, plugin: str, message: Any) -> list[Any]:
        answers = await self._ask(Tell(plugin, message))
        return [_checked(answers[slot]) for slot in sorted(answers)]

    async def _reload(self) -> dict[str, Any]:
        answers = await self._ask(Reload())
        told: dict[str, Any] = _checked(answers[0])
        return told

    async def _look_again(self) -> None:
        """Who is held here tries again now and then: another process may have made room.

        Each time: between two looks room may have come, gone and come again, which no two sums would show.
        """
        holds = self._application.holds
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            if len(holds):
                holds.wake_for_workers()


def _checked(answer: Any) -> Any:
    if isinstance(answer, Refused):
        raise Reject(answer.status, answer.code, answer.message, answer.param)
    if isinstance(answer, Fault):
        raise RuntimeError(f"another process failed: {answer.message}")
    return answer


def main(fd: int) -> int:
    """Builds the router as the supervisor says, and runs it."""
    end = socket.socket(fileno=fd)
    try:
        setup: Setup = read_first(end)
    except EOFError:
        return 1
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
