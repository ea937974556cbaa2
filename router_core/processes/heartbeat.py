"""Notices a process that does not answer any more, be it stopped or its event loop blocked, and kills it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from router_core.processes.messages import Ping
from router_core.processes.slot import Slot

log = logging.getLogger("router_core")

BEATS = 10
"""Looks within the time that a process has to answer."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """``timeout_s`` is what a process has to answer in; ``preparing_s`` while it starts plugins for a reload.

    Time is counted in beats of our own: where the supervisor, or the whole machine, stood still, nobody is blamed. A
    process that has not started yet is not watched, as nobody knows how long its plugins have to load.
    """

    timeout_s: float
    preparing_s: float
    is_preparing: Callable[[], bool]
    is_over: Callable[[], bool]
    """Whether the router stops: who ends is not asked any more."""

    async def watch(self, slot: Slot) -> None:
        """Kills the process that is in the slot now, should it hang."""
        beat_s = self.timeout_s / BEATS
        while beat_s:
            await asyncio.sleep(beat_s)
            if not slot.is_ready or self.is_over():
                continue
            allowed_s = max(self.timeout_s, self.preparing_s) if self.is_preparing() else self.timeout_s
            if slot.silent_beats > round(allowed_s / beat_s):
                slot.hung = f"it had not answered for {slot.silent_beats * beat_s:.3g} s (router.process_timeout_s)"
                log.error("process %d hangs, %s: it is killed", slot.number, slot.hung)
                slot.kill()
                return
            if slot.silent_beats == 0:
                slot.send(Ping())
            slot.silent_beats += 1
