"""The router as plugins and middleware see it: what `startup` is given and a middleware's ``router=`` gets."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Set
from typing import Any

from router_core.clock import Clock
from router_core.control import ControlClient
from router_core.holds import HoldQueue
from router_core.sessions import SessionTable
from router_core.settings import RouterSettings
from router_core.tasks import Tasks
from router_core.timing import HookTimes
from router_core.types import Exchange, Session, Worker
from router_core.workers import WorkerTable


class Router:
    """Clock, background work, workers, sessions, held requests and control client of one process.

    Free attributes may be set on it, as SlimeRouter's middlewares do.
    """

    def __init__(
        self,
        settings: RouterSettings,
        clock: Clock,
        tasks: Tasks,
        workers: WorkerTable,
        sessions: SessionTable,
        holds: HoldQueue,
        control: ControlClient,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.workers = workers
        self.sessions = sessions
        self.holds = holds
        self.control = control
        self.args = argparse.Namespace(**{**settings.model_dump(), **settings.args})
        """The settings as a namespace, with ``[router] args`` on top: slime's middlewares read it."""
        self._tasks = tasks
        self.exchanges: Set[Exchange] = frozenset()
        """The exchanges that run or wait at this moment; a live view."""
        self.warming: dict[str, str] = {}
        """What plugins still wait for before the router is ready: their name -> what it is, for people. Who puts
        something in takes it out; meanwhile ``GET /readiness`` is 503 ``warming``, and requests pass."""
        self.find_tokenizer: Callable[[str | None], Any] = lambda name: None
        self.time_hooks: Callable[[], HookTimes] = HookTimes
        """Has the time of every hook taken from now on; call it in `startup`."""
        self.plugin_errors: Callable[[], dict[tuple[str, str], int]] = dict
        """(plugin, hook) -> how often it failed."""
        self.plugin_metrics: Callable[[], str] = str
        """What the plugins' `metrics` hooks say, joined."""
        self.open_session: Callable[[dict[str, Any]], Awaitable[Session]] = _no_sessions
        """Opens a session as ``POST /sessions`` with this body would. Raises Reject."""
        self.tell_all: Callable[[object, Any], Awaitable[list[Any]]] = _nobody
        """``await router.tell_all(self, message)`` in a plugin: its hook `told` runs in every process of
        ``--processes``; gives the answers of all. Raises Reject if one of them did."""
        self.session_moved: Callable[[str, Worker, Worker], None] = lambda session_id, old, new: None

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Starts background work; bounded in number, cancelled and awaited at shutdown."""
        return self._tasks.spawn(work, name=name)

    @property
    def worker_urls(self) -> dict[str, int]:
        """Each worker's url and how many requests are in flight at it."""
        return {worker.url: worker.inflight for worker in self.workers}

    def session(self, session_id: str) -> Session | None:
        """An open session by its id."""
        return self.sessions.get(session_id)


async def _nobody(plugin: object, message: Any) -> list[Any]:
    raise RuntimeError("plugins hear each other once the router is built")


async def _no_sessions(body: dict[str, Any]) -> Session:
    raise RuntimeError("sessions open once the router is built")
