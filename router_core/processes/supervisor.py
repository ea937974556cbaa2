"""The parent of all processes: starts them, replaces those that end, and puts what all run into one order.

It takes no request, and holds nothing that a request needs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from router_core.config import Config
from router_core.errors import ConfigError
from router_core.file_limit import raise_file_limit
from router_core.generation import RELOADED
from router_core.processes.counts import Counts
from router_core.processes.listeners import listen_for_all
from router_core.processes.messages import (
    Abandon,
    Ask,
    Closed,
    Commit,
    Failed,
    Fault,
    Go,
    HandOver,
    Hello,
    Listen,
    Opened,
    Peers,
    Prepare,
    Ran,
    Ready,
    Refused,
    Reload,
    Run,
    Setup,
    Started,
    Stop,
    Told,
)
from router_core.processes.slot import Slot
from router_core.server import CUT_S, clear_ready_file, publish, set_up_logging
from router_core.settings import RouterSettings

log = logging.getLogger("router_core")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
STEADY_S = 10.0
"""Seconds after which a process that ends was no failed start: the pause before the next one is short again."""
STOP_S = 5.0
"""Seconds, beyond the grace of requests, that a process gets to stop."""
MAX_NAMED = 20
LOST = object()
"""The answer of a process that ended before it gave one."""


class Supervisor:
    """Keeps one process in every slot until it is told to stop."""

    def __init__(self, read_config: Callable[[], Config], config: Config) -> None:
        self._read_config = read_config
        self._config = config
        self._first_settings = config.router
        self._generation = 1
        self._secret = secrets.token_hex(32).encode()
        self._slots: list[Slot] = []
        self._counts: Counts
        self._serials = itertools.count()
        self._waiting: dict[tuple[int, int], asyncio.Future[Any]] = {}
        """(serial, slot) -> the answer that is to come."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_reloading = asyncio.Lock()
        self._has_begun = False
        self._stopping = asyncio.Event()
        self._signal = signal.SIGTERM
        self._error: ConfigError | None = None

    async def run(self) -> int:
        """Until a signal; returns the exit status. Raises ConfigError."""
        settings = self._config.router
        self._slots = [
            Slot(number, found) for number, found in enumerate(listen_for_all(self._config, settings.processes))
        ]
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
        if self._error is not None:
            raise self._error
        if not self._has_begun:
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
            if slot.process is not None and slot.process.returncode is None:
                slot.process.kill()

    async def _end(self, keepers: Sequence[asyncio.Task[None]]) -> None:
        """Refuses what is new, lets the processes end, and kills those that do not."""
        for slot in self._slots:
            slot.listeners.close()
            slot.send(Stop())
        grace_s = self._first_settings.shutdown_grace_s if self._has_begun else 0.0
        _, late = await asyncio.wait(keepers, timeout=grace_s + 2 * CUT_S + STOP_S)
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
            if not self._has_begun and not self._stopping.is_set():
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
            config=self._config,
            generation=self._generation,
            data_fd=slot.listeners.data.fileno(),
            admin_fd=admin.fileno() if admin is not None else None,
            counts_fd=self._counts.fd,
            secret=self._secret,
        )

    async def _hear(self, slot: Slot) -> None:
        """Takes what the process says, until it is gone."""
        assert slot.link is not None  # it was started
        try:
            while True:
                self._take(slot, await slot.link.receive())
        except EOFError:
            pass

    def _take(self, slot: Slot, message: Any) -> None:
        match message:
            case Ran():
                if (future := self._waiting.pop((message.serial, slot.number), None)) is not None:
                    future.set_result(message.answer)
            case Ask():
                self._spawn(self._tell(slot, message), name="ask")
            case Opened():
                slot.sessions.add(message.session_id)
                slot.lost.pop(message.session_id, None)
            case Closed():
                slot.sessions.discard(message.session_id)
            case Hello():
                slot.address = message.address
                self._greet(slot)
            case Started():
                self._let_in(slot)
            case Ready():
                self._be_ready(slot)
            case Failed():
                error = ConfigError(message.message, where=message.where, key=message.key)
                if self._has_begun:
                    log.error("process %d cannot start: %s", slot.number, error)
                self._error = self._error or (None if self._has_begun else error)

    def _greet(self, slot: Slot) -> None:
        """The process is built: it starts at once in the beginning, later with the state of another."""
        slot.has_joined = True
        donors = [other for other in self._slots if other.is_in and other is not slot]
        if self._stopping.is_set():
            slot.send(Stop())
        elif not self._has_begun or not donors:
            if self._has_begun:
                log.error("process %d: no other process runs, the workers are those of the configuration", slot.number)
            slot.has_state = True
            slot.send(Go(None, dict(slot.lost)))
        else:
            slot.has_state = False  # what runs from now on it runs, too, once it has what was before
            asked = self._send_to(donors[:1], HandOver())
            self._spawn(self._hand_over(slot, slot.link, donors[0], asked), name=f"state for {slot.number}")

    async def _hand_over(self, slot: Slot, link: object, donor: Slot, asked: Mapping[int, asyncio.Future[Any]]) -> None:
        handed = (await _answers(asked)).get(donor.number)
        if slot.link is not link:
            return  # it is gone already
        if handed is None or isinstance(handed, Refused | Fault):
            log.error("process %d got no state of process %d and is started again", slot.number, donor.number)
            if slot.process is not None:
                slot.process.kill()
            return
        slot.send(Go(handed, dict(slot.lost)))
        slot.has_state = True
        for message in slot.waits_for_state:
            slot.send(message)
        slot.waits_for_state.clear()

    def _let_in(self, slot: Slot) -> None:
        """It knows what all know: it may take requests, in the beginning when every process may."""
        slot.is_in = True
        if self._has_begun or all(each.is_in for each in self._slots):
            self._tell_peers()
            for each in [slot] if self._has_begun else self._slots:
                each.send(Listen())

    def _be_ready(self, slot: Slot) -> None:
        slot.is_ready = True
        if self._has_begun:
            pid = slot.process.pid if slot.process is not None else 0
            log.info("process %d (pid %d) takes requests", slot.number, pid)
        elif all(each.is_ready for each in self._slots):
            self._has_begun = True
            settings = self._first_settings
            publish(self._slots[0].listeners, settings, workers=len(settings.workers))
            log.info("%d processes share the port", len(self._slots))

    def _tell_peers(self) -> None:
        peers = Peers([slot.address if slot.is_in else None for slot in self._slots])
        for slot in self._slots:
            if slot.is_in:
                slot.send(peers)

    def _lose(self, slot: Slot, pid: int, status: int, pause_s: float) -> None:
        """A process is gone: says what went with it."""
        was_ready = slot.is_ready
        how = f"process {slot.number} (pid {pid}), which owned it, ended {_how(status)}"
        sessions = slot.lose(how)
        attempts = self._counts.take_away(slot.number)
        for (serial, number), future in list(self._waiting.items()):
            if number == slot.number:
                del self._waiting[serial, number]
                future.set_result(LOST)
        self._tell_peers()
        if self._stopping.is_set() or not self._has_begun:
            return
        named = ", ".join(sorted(sessions)[:MAX_NAMED])
        more = f" and {len(sessions) - MAX_NAMED} more" if len(sessions) > MAX_NAMED else ""
        log.error(
            "process %d (pid %d) ended %s%s; lost: %d attempts in flight, %d open sessions%s; another starts in %g s",
            slot.number,
            pid,
            _how(status),
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
            answers: Mapping[int, Any] = {0: await self._reload()}
        else:
            answers = await self._run_in(self._slots, message.what)
        if slot.link is link:
            slot.send(Told(message.id, answers))

    async def _run_in(self, slots: Sequence[Slot], what: Any) -> dict[int, Any]:
        """Has processes run something, all in the same order; the answers of those that live to give one."""
        return await _answers(self._send_to(slots, what))

    def _send_to(self, slots: Sequence[Slot], what: Any) -> dict[int, asyncio.Future[Any]]:
        """The same, up to what must not be interrupted: slot -> the answer that is to come."""
        serial, futures = next(self._serials), {}
        for slot in slots:
            if slot.has_joined:
                if slot.is_in:
                    futures[slot.number] = asyncio.get_running_loop().create_future()
                    self._waiting[serial, slot.number] = futures[slot.number]
                slot.run(Run(serial, what))
        return futures

    # -------------------------------------------------------------------------------------------------------- reload
    def _reload_soon(self) -> None:
        self._spawn(self._reload_quietly(), name="reload")

    async def _reload_quietly(self) -> None:
        told = await self._reload()
        if isinstance(told, Refused):
            log.error("the configuration was not reloaded, the old one serves on: %s", told.message)

    async def _reload(self) -> dict[str, Any] | Refused:
        """All processes take the new configuration, or none does."""
        if self._is_reloading.locked() or self._stopping.is_set():
            return Refused(409, "reload_running", "a reload is under way, or the router stops")
        async with self._is_reloading:
            try:
                read = self._read_config()
            except ConfigError as error:
                return Refused(400, "bad_configuration", str(error))
            config = dataclasses.replace(read, router=_reloaded(self._first_settings, read.router))
            prepared = await self._run_in(self._slots, Prepare(config))
            refused = next((answer for answer in prepared.values() if isinstance(answer, Refused | Fault)), None)
            if refused is not None:
                await self._run_in(self._slots, Abandon())
                return refused if isinstance(refused, Refused) else Refused(400, "bad_configuration", refused.message)
            self._config = config
            self._generation += 1
            for slot in self._slots:
                if slot.process is not None and not slot.has_joined:
                    slot.process.kill()  # it is being built from the old configuration
            told = await self._run_in(self._slots, Commit())
            answer = next((answer for answer in told.values() if isinstance(answer, dict)), {})
            changed = [
                f"router.{name}"
                for name in RouterSettings.model_fields
                if name not in RELOADED and getattr(read.router, name) != getattr(self._first_settings, name)
            ]
            return {**answer, "needs_restart": changed}


async def _answers(futures: Mapping[int, asyncio.Future[Any]]) -> dict[int, Any]:
    answers = {number: await future for number, future in futures.items()}
    return {number: answer for number, answer in answers.items() if answer is not LOST}


def _reloaded(first: RouterSettings, read: RouterSettings) -> RouterSettings:
    """The settings of the start with those that a reload may change, or that name plugins."""
    names = (*RELOADED, "middleware_paths", "slime_router_middleware_paths")
    return first.model_copy(update={name: getattr(read, name) for name in names})


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
