"""What the supervisor has a process run, because all of them do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from router_core.app import Application
from router_core.errors import Reject
from router_core.generation import Generation
from router_core.processes.link import Link
from router_core.processes.messages import (
    Abandon,
    Commit,
    Fault,
    Handed,
    HandOver,
    Prepare,
    Ran,
    Refused,
    RouteCall,
    Run,
    Tell,
)
from router_core.processes.snapshot import take_snapshot
from router_core.processes.switch import Switch

log = logging.getLogger("router_core")


class Running:
    """Begun in the order of the messages; each answers when it has ended."""

    def __init__(
        self, slot: int, application: Application, switch: Switch, link: Link, *, stop: Callable[[], None]
    ) -> None:
        """``stop`` ends this process."""
        self._slot = slot
        self._application = application
        self._switch = switch
        self._link = link
        self._stop = stop
        self._tasks: set[asyncio.Task[None]] = set()
        self._prepared: Generation | None = None

    def start(self, message: Run) -> None:
        task = asyncio.create_task(self._run(message), name=f"run {message.serial}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, message: Run) -> None:
        try:
            answer = await self._answer(message.what)
        except Reject as refusal:
            answer = Refused(refusal.status, refusal.code, refusal.message, refusal.param)
        except Exception as error:
            log.exception("process %d could not run %.200r", self._slot, message.what)
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
                log.error("process %d did not follow a reload: it is replaced", self._slot)
                self._stop()
                return None
            return application.commit(prepared)
        if isinstance(what, Abandon):
            if prepared is not None:
                await application.abandon(prepared)
            return None
        raise TypeError(f"nobody runs {what!r}")
