"""What all processes run: each gets it in the same order, and their answers come back together."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from router_core.processes.messages import Ran, Run
from router_core.processes.slot import Slot

LOST = object()
"""The answer of a process that ended before it gave one."""


class Broadcast:
    """The supervisor's side: everything that goes to all of them goes through here."""

    def __init__(self) -> None:
        self._serials = itertools.count()
        self._waiting: dict[tuple[int, int], asyncio.Future[Any]] = {}
        """(serial, slot) -> the answer that is to come."""

    async def run_in(self, slots: Sequence[Slot], what: Any) -> dict[int, Any]:
        """Has processes run something; the answers, by slot, of those that live to give one."""
        return await answers(self.send_to(slots, what))

    def send_to(self, slots: Sequence[Slot], what: Any) -> dict[int, asyncio.Future[Any]]:
        """The same, up to what must not be interrupted: slot -> the answer that is to come."""
        serial, futures = next(self._serials), {}
        for slot in slots:
            if slot.has_joined:
                if slot.is_in:
                    futures[slot.number] = asyncio.get_running_loop().create_future()
                    self._waiting[serial, slot.number] = futures[slot.number]
                slot.run(Run(serial, what))
        return futures

    def take(self, slot: Slot, message: Ran) -> None:
        """A process's answer."""
        if (future := self._waiting.pop((message.serial, slot.number), None)) is not None:
            future.set_result(message.answer)

    def lose(self, slot: Slot) -> None:
        """Its answers will not come."""
        for (serial, number), future in list(self._waiting.items()):
            if number == slot.number:
                del self._waiting[serial, number]
                future.set_result(LOST)


async def answers(futures: Mapping[int, asyncio.Future[Any]]) -> dict[int, Any]:
    """Those of the processes that lived to give one."""
    found = {number: await future for number, future in futures.items()}
    return {number: answer for number, answer in found.items() if answer is not LOST}
