"""How a process comes in among the others: with the state of one that runs, and before it takes requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from router_core.processes.broadcast import Broadcast, answers
from router_core.processes.messages import Fault, Go, HandOver, Listen, Peers, Refused, Stop
from router_core.processes.slot import Slot
from router_core.server import publish
from router_core.settings import RouterSettings

log = logging.getLogger("router_core")


class Joining:
    """In the beginning all start at once and take requests together; later one takes the place of a lost one."""

    def __init__(
        self,
        settings: RouterSettings,
        slots: Sequence[Slot],
        broadcast: Broadcast,
        *,
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
        is_over: Callable[[], bool],
    ) -> None:
        self.has_begun = False
        """Whether requests are taken, and the port was published."""
        self._settings = settings
        self._slots = slots
        self._broadcast = broadcast
        self._spawn = spawn
        self._is_over = is_over

    def greet(self, slot: Slot) -> None:
        """The process is built: it starts at once in the beginning, later with the state of another."""
        slot.has_joined = True
        donors = [other for other in self._slots if other.is_in and other is not slot]
        if self._is_over():
            slot.send(Stop())
        elif not self.has_begun or not donors:
            if self.has_begun:
                log.error("process %d: no other process runs, the workers are those of the configuration", slot.number)
            slot.has_state = True
            slot.send(Go(None, dict(slot.lost)))
        else:
            slot.has_state = False  # what runs from now on it runs, too, once it has what was before
            asked = self._broadcast.send_to(donors[:1], HandOver())
            self._spawn(self._hand_over(slot, slot.link, donors[0], asked), f"state for {slot.number}")

    async def _hand_over(self, slot: Slot, link: object, donor: Slot, asked: Mapping[int, asyncio.Future[Any]]) -> None:
        handed = (await answers(asked)).get(donor.number)
        if slot.link is not link:
            return  # it is gone already
        if handed is None or isinstance(handed, Refused | Fault):
            log.error("process %d got no state of process %d and is started again", slot.number, donor.number)
            slot.kill()
            return
        slot.send(Go(handed, dict(slot.lost)))
        slot.has_state = True
        for message in slot.waits_for_state:
            slot.send(message)
        slot.waits_for_state.clear()

    def let_in(self, slot: Slot) -> None:
        """It knows what all know: it may take requests, in the beginning when every process may."""
        slot.is_in = True
        if self.has_begun or all(each.is_in for each in self._slots):
            self.tell_peers()
            for each in [slot] if self.has_begun else self._slots:
                each.send(Listen())

    def be_ready(self, slot: Slot) -> None:
        slot.is_ready = True
        if self.has_begun:
            pid = slot.process.pid if slot.process is not None else 0
            log.info("process %d (pid %d) takes requests", slot.number, pid)
        elif all(each.is_ready for each in self._slots):
            self.has_begun = True
            settings = self._settings
            publish(self._slots[0].listeners, settings, workers=len(settings.workers))
            log.info("%d processes share the port", len(self._slots))

    def tell_peers(self) -> None:
        peers = Peers([slot.address if slot.is_in else None for slot in self._slots])
        for slot in self._slots:
            if slot.is_in:
                slot.send(peers)
