"""Stopping and starting dispatch: the leases in time, and what is on its way when a pause begins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from router_core import Attempt, Router, Worker
from router_weight_version.pause import Pauses

log = logging.getLogger(__name__)

PAUSED = "paused"
"""Kind and lane of requests that are held because the router is paused."""


class Dispatch:
    """Whether requests may be given to workers now."""

    def __init__(self) -> None:
        self.pauses = Pauses()
        self.uploading: set[Attempt] = set()
        """Attempts whose body is streamed to their worker; some are through."""
        self.leases_ended = 0
        """Pauses that ended by themselves."""
        self._router: Router | None = None
        self._is_leased = asyncio.Event()

    def start(self, router: Router) -> None:
        """The router starts."""
        self._router = router
        router.spawn(self._end_leases(router), name="leases of pauses")

    def pause(self, workers: Sequence[Worker], until: float) -> int:
        """Stops dispatch to these workers, or with none given to all, until a clock time; returns the new epoch."""
        for target in workers or (None,):
            self.pauses.pause(target, until)
            for worker in self._covered(target):
                worker.windows.open(_window(target), until)
        self._is_leased.set()
        log.info("dispatch to %s is paused", _names(workers))
        return self.pauses.epoch

    def adopt(self, state: Any, find: Callable[[str], Worker | None]) -> None:
        """Pauses as another process, or an earlier generation, described them; ``find`` knows workers by their id."""
        epoch, described = state
        found = [(None if name is None else find(name), name, begun_in, until) for name, begun_in, until in described]
        self.pauses.adopt(epoch, [(target, e, u) for target, name, e, u in found if target is not None or name is None])
        self._is_leased.set()

    def resume(self, workers: Sequence[Worker]) -> bool:
        """Ends a pause; whether there was one."""
        ended = [self.pauses.resume(target) for target in workers or (None,)]
        for target in workers or (None,):
            self._close_windows(target)
        self._let_go()
        if any(ended):
            log.info("dispatch to %s goes on", _names(workers))
        return any(ended)

    async def wait_handed_over(self, timeout_s: float) -> int:
        """Waits for requests that are half sent; returns how many still are when the time is over.

        What is not sent at all needs no waiting: it is withdrawn at the moment of sending.
        """
        on_the_way = [attempt for attempt in self.uploading if not attempt.is_handed_over]
        try:
            async with asyncio.timeout(timeout_s):
                for attempt in on_the_way:
                    await attempt.wait_handed_over()
        except TimeoutError:
            pass
        return sum(not attempt.is_handed_over for attempt in on_the_way)

    def _covered(self, target: Worker | None) -> Iterable[Worker]:
        """The workers that a pause is for; those that come later have nothing yet that they could abort."""
        if target is not None:
            return (target,)
        return () if self._router is None else list(self._router.workers)

    def _close_windows(self, target: Worker | None) -> None:
        if self._router is not None:
            for worker in self._covered(target):
                worker.windows.close(_window(target), self._router.clock.now())

    def _let_go(self) -> None:
        if self._router is not None:
            self._router.holds.wake(PAUSED)
            self._router.holds.wake_for_workers()

    async def _end_leases(self, router: Router) -> None:
        """Ends each pause whose lease is over, for ever."""
        while True:
            self._is_leased.clear()
            end = self.pauses.next_end()
            if end is None:
                await self._is_leased.wait()
                continue
            try:
                async with asyncio.timeout(max(0.0, end - router.clock.now())):
                    await self._is_leased.wait()
            except TimeoutError:
                for target in self.pauses.expire(router.clock.now()):
                    self.leases_ended += 1
                    named = target.url if isinstance(target, Worker) else "all workers"
                    self._close_windows(target if isinstance(target, Worker) else None)
                    log.warning("the pause of dispatch to %s ends by itself: nobody resumed it in time", named)
                    self._let_go()


def _window(target: Worker | None) -> str:
    return "pause of dispatch" if target is None else "pause of dispatch to it"


def _names(workers: Sequence[Worker]) -> str:
    return ", ".join(worker.url for worker in workers) or "all workers"
