"""Asks a worker whether it lives, by the path that suits its engine, and reads the answer."""

from __future__ import annotations

from dataclasses import dataclass

from router_core import Clock, ControlAnswer, ControlClient, Worker
from router_health.record import Sign

AUTO = "auto"
HEALTH, READY = "/health", "/ready"
SLOW_S = 0.9
"""SGLang's ``/health`` generates a token and never answers under one second; vLLM's answers at once."""


@dataclass(slots=True)
class ProbePath:
    """Which path one worker is asked: ``/health``; where that is slow, ``/ready`` if it has one."""

    path: str = HEALTH
    has_ready: bool | None = None
    """None until ``/ready`` was tried."""

    def learn(self, status: int, took_s: float) -> bool:
        """Takes in an answer (``status`` 0: none came); True when the other path must be asked for a verdict."""
        if self.path == READY and (400 <= status < 500 or status == 501):
            self.path, self.has_ready = HEALTH, False
            return True
        if self.path == READY:
            if status:
                self.has_ready = True
            elif self.has_ready is None:
                self.path = HEALTH
        elif took_s >= SLOW_S and self.has_ready is not False:
            self.path = READY
        return False


def read(answer: ControlAnswer, path: str) -> tuple[Sign, str]:
    """What an answer to a probe shows, and how to say so.

    A 4xx is life: a server without such a path, or one that wants a key.
    """
    if answer.refused:
        return Sign.REFUSED, answer.error or "connection refused"
    if answer.timed_out:
        return Sign.SILENT, f"{path}: {answer.error}"
    if not answer.status:
        return Sign.FAILED, f"{path}: {answer.error}"
    if answer.status < 500:
        return Sign.ANSWERED, ""
    return Sign.NOT_UP if answer.status == 503 else Sign.FAILED, f"{path} answered {answer.status}"


class Prober:
    """Sends probes, each on a connection of its own, so that a hung one delays nobody."""

    def __init__(self, control: ControlClient, clock: Clock, path: str) -> None:
        self._control = control
        self._clock = clock
        self._path = path

    async def ask(self, worker: Worker, path: ProbePath, timeout_s: float) -> tuple[Sign, str]:
        """One probe: what it shows, and the reason where that is bad."""
        if self._path != AUTO:
            return read(await self._call(worker, self._path, timeout_s), self._path)
        while True:
            asked, since = path.path, self._clock.now()
            answer = await self._call(worker, asked, timeout_s)
            if not path.learn(answer.status, self._clock.now() - since):
                return read(answer, asked)

    async def _call(self, worker: Worker, path: str, timeout_s: float) -> ControlAnswer:
        return await self._control.call(worker, "GET", path, timeout_s=timeout_s)
