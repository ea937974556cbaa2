"""What a demo needs to know of its engine: how one is started, and how rollouts talk to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from router_core.demo.printing import Stopwatch
from router_core.demo.processes import Process


class TurnFailed(Exception):
    """A turn was not answered: the router said so, or the transfer broke."""


class Turn(Protocol):
    """One answered turn."""

    @property
    def worker_url(self) -> str | None: ...
    @property
    def output_ids(self) -> list[int]: ...
    def line(self, what: str, worker: str) -> str:
        """How it is printed."""
        ...


class Rollout(Protocol):
    """One agent run, a session of its own, turn by turn."""

    name: str
    turns: int

    @property
    def is_done(self) -> bool: ...
    async def turn(self) -> Turn:
        """Asks the next question. Raises TurnFailed: the turn may be asked again."""
        ...


class Cast(Protocol):
    """One kind of engine as the demo plays it."""

    introduction: str
    promise: str
    rollouts: str
    """What a turn sends."""
    legend: str
    """What the columns of a turn's line are, with their heads."""
    more_turns: int
    """Turns that are served between one event and the next."""
    deadline_s: float

    def worker(self, name: str, directory: Path) -> Process: ...
    async def begin(self, router_url: str, workers: Sequence[Process], watch: Stopwatch) -> None:
        """What happens before the rollouts. Raises DemoFailure when anything is not as promised."""
        ...

    def rollout(self, number: int) -> Rollout: ...
    async def end(self, workers: Sequence[Process], rollouts: Sequence[Rollout], watch: Stopwatch) -> None:
        """What happens after them, nothing else being under way. Raises DemoFailure likewise."""
        ...

    def example(self, router_url: str) -> str:
        """A command to try while everything is left serving."""
        ...
