"""The parent of all processes: starts them, replaces those that end, and puts what all run into one order.

It takes no request, and holds nothing that a request needs.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from router_core.config import Config
from router_core.errors import ConfigError
from router_core.file_limit import raise_file_limit
from router_core.processes.broadcast import Broadcast
from router_core.processes.counts import Counts
from router_core.processes.heartbeat import Heartbeat
from router_core.processes.joining import Joining
from router_core.processes.listeners import listen_for_all
from router_core.processes.messages import (
    Ask,
    Closed,
    Failed,
    Hello,
    Opened,
    Ran,
    Ready,
    Refused,
    Reload,
    Setup,
    Started,
    Stop,
    Told,
)
from router_core.processes.orphan import longest_stop_s
from router_core.processes.reloading import Reloading
from router_core.processes.slot import Slot
from router_core.server import clear_ready_file, set_up_logging

log = logging.getLogger("router_core")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
STEADY_S = 10.0
"""Seconds after which a process that ends was no failed start: the pause before the next one is short again."""
MAX_NAMED = 20


class Supervisor:
    """Keeps one process in every slot until it is told to stop."""

    def __init__(self, read_config: Callable[[], Config], config: Config) -> None:
        self._config = config
        """That of the start."""
        self._secret = secrets.token_hex(32).encode()
        self._slots: list[Slot] = []
        self._counts: Counts
        self._broadcast = Broadcast()
        self._reloading = Reloading(read_config, config, self._slots, self._broadcast)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = asyncio.Event()
        self._joining = Joining(
            config.router, self._slots, self._broadcast, spawn=self._spawn, is_over=self._stopping.is_set
        )
        self._heartbeat = Heartbeat(
            config.router.process_timeout_s,
            config.router.reload_timeout_s,
            is_preparing=lambda: self._reloading.is_preparing,
            is_over=self._stopping.is_set,
        )
        self._signal = signal.SIGTERM
        self._error: ConfigError | None = None

    async def run(self) -> int:
        """Until a signal; returns the exit status. Raises ConfigError."""
        settings = self._config.router
        listeners = listen_for_all(self._config, settings.processes)
        self._slots += (Slot(number, found) for number, found in enumerate(listeners))
        self._counts = Counts.create(len(self._slots))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload_soon)
        keepers = [asyncio.create_task(self._keep(slot), name=f"slot {slot.number}") for slot in self._slots]
        for keeper in keepers:
            keeper.add_done_callback(self._kept)
        await self._stopping.wait()
        await self._end(keepers)
        for slot in self._slots:
            slot.close()
        if self._error is not None:
            raise self._error
        if not self._joining.has_begun:
            log.warning("stopped while it was starting")
            return 1
        return 130 if self._signal == signal.SIGINT else 0

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        """A slot that nobody looks after any more would be a part of the sessions lost for good: all stop."""
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            log.critical("the supervisor failed, all processes stop: %r", error, exc_info=error)
            self._stopping.set()

    def _stop(self, number: int) -> None:
        if self._stopping.is_set():
            self._kill()
        self._signal = signal.Signals(number)
        self._stopping.set()

    def _kill(self) -> None:
        for slot in self._slots:
            slot.kill()

    async def _end(self, keepers: Sequence[asyncio.Task[None]]) -> None:
        """Refuses what is new, lets the processes end, and kills those that do not."""
        for slot in self._slots:
            slot.listeners.close()
            slot.send(Stop())
        settings = self._config.router
        unused_s = 0.0 if self._joining.has_begun else settings.shutdown_grace_s  # there are no requests yet
        _, late = await asyncio.wait(keepers, timeout=longest_stop_s(settings) - unused_s)
        if late:
            log.error("%d processes do not end, whatever they are told: they are killed", len(late))
            self._kill()
            await asyncio.wait(late)
        for task in list(self._tasks):
            task.cancel()

    def _spawn(self, work: Any, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------------------------------------- one process
    async def _keep(self, slot: Slot) -> None:
        """Starts a process, and another when it ends."""
        pause_s, loop = FIRST_PAUSE_S, asyncio.get_running_loop()
        while not self._stopping.is_set():
            began = loop.time()
            try:
                await slot.start(self._setup(slot))
            except OSError as error:
                log.error("process %d cannot be started: %s", slot.number, error)
                slot.lose("")
                await asyncio.sleep(LONGEST_PAUSE_S)
                continue
            pid = slot.process.pid if slot.process is not None else 0
            await self._hear(slot)
            status = await slot.process.wait() if slot.process is not None else 0
            lasted_s = loop.time() - began
            pause_s = FIRST_PAUSE_S if lasted_s > STEADY_S else min(2 * pause_s, LONGEST_PAUSE_S)
            self._lose(slot, pid, status, pause_s)
            if not self._joining.has_begun and not self._stopping.is_set():
                self._error = self._error or ConfigError(f"process {slot.number} did not start ({_how(status)})")
                self._stopping.set()
            if not self._stopping.is_set():
                try:
                    async with asyncio.timeout(pause_s):
                        await self._stopping.wait()
                except TimeoutError:
                    pass

    def _setup(self, slot: Slot) -> Setup:
        admin = slot.listeners.admin
        return Setup(
            slot=slot.number,
            processes=len(self._slots),
            config=self._reloading.config,
            generation=self._reloading.generation,
            data_fd=slot.listeners.data.fileno(),
            admin_fd=admin.fileno() if admin is not None else None,
            counts_fd=self._counts.fd,
            taking_fd=slot.taking.fileno(),
            giving_fds=[each.giving.fileno() for each in self._slots],
            secret=self._secret,
        )

    async def _hear(self, slot: Slot) -> None:
        """Takes what the process says, until it is gone."""
        watching = asyncio.create_task(self._heartbeat.watch(slot), name=f"heartbeat {slot.number}")
        try:
            while True:
                self._take(slot, await slot.receive())
        except EOFError:
            pass
        finally:
            watching.cancel()

    def _take(self, slot: Slot, message: Any) -> None:
        match message:
            case Ran():
                self._broadcast.take(slot, message)
            case Ask():
                self._spawn(self._tell(slot, message), name="ask")
            case Opened():
                slot.sessions.add(message.session_id)
                slot.lost.pop(message.session_id, None)
            case Closed():
                slot.sessions.discard(message.session_id)
            case Hello():
                slot.address = message.address
                self._joining.greet(slot)
            case Started():
                self._joining.let_in(slot)
            case Ready():
                self._joining.be_ready(slot)
            case Failed():
                error = ConfigError(message.message, where=message.where, key=message.key)
                if self._joining.has_begun:
                    log.error("process %d cannot start: %s", slot.number, error)
                self._error = self._error or (None if self._joining.has_begun else error)

    def _lose(self, slot: Slot, pid: int, status: int, pause_s: float) -> None:
        """A process is gone: says what went with it."""
        was_ready = slot.is_ready
        ended = _how(status) + (f": {slot.hung}" if slot.hung else "")
        how = f"process {slot.number} (pid {pid}), which owned it, ended {ended}"
        sessions = slot.lose(how)
        attempts = self._counts.take_away(slot.number)
        self._broadcast.lose(slot)
        self._joining.tell_peers()
        if self._stopping.is_set() or not self._joining.has_begun:
            return
        named = ", ".join(sorted(sessions)[:MAX_NAMED])
        more = f" and {len(sessions) - MAX_NAMED} more" if len(sessions) > MAX_NAMED else ""
        log.error(
            "process %d (pid %d) ended %s%s; lost: %d attempts in flight, %d open sessions%s; another starts in %g s",
            slot.number,
            pid,
            ended,
            "" if was_ready else " before it took requests",
            attempts,
            len(sessions),
            f" ({named}{more})" if sessions else "",
            pause_s,
        )

    # ------------------------------------------------------------------------------------------------- what all run
    async def _tell(self, slot: Slot, message: Ask) -> None:
        link = slot.link
        if isinstance(message.what, Reload):
            told: Mapping[int, Any] = {0: await self._reload()}
        else:
            told = await self._broadcast.run_in(self._slots, message.what)
        if slot.link is link:
            slot.send(Told(message.id, told))

    async def _reload(self) -> dict[str, Any] | Refused:
        if self._stopping.is_set():
            return Refused(409, "reload_running", "the router stops")
        return await self._reloading.reload()

    def _reload_soon(self) -> None:
        if not self._joining.has_begun:
            log.warning("no reload: the router is starting")
        elif not self._stopping.is_set():
            self._spawn(self._reloading.reload_quietly(), name="reload")


def _how(status: int) -> str:
    if status < 0:
        return f"by signal {-status}"
    return f"with status {status}"


def serve_in_processes(read_config: Callable[[], Config], config: Config) -> int:
    """Serves by ``router.processes`` processes until a signal; returns the exit status. Raises ConfigError."""
    settings = config.router
    set_up_logging(settings.log_level)
    clear_ready_file(settings.ready_file, config.where("router.ready_file"))
    raise_file_limit(settings.max_held_requests)
    return asyncio.run(Supervisor(read_config, config).run())
