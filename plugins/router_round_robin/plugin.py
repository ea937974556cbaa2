"""Every worker in its turn, whatever its load."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import ClassVar

from router_core import Worker, hookimpl

LAST_PICK = attrgetter("last_pick")


class RoundRobin:
    """Picks the worker whose last turn is longest ago. Scores of other plugins do not count."""

    requires_api: ClassVar[str] = ">=1,<2"
    several_processes: ClassVar[bool] = True

    @hookimpl
    def pick_worker(self, workers: Sequence[Worker]) -> Worker:
        return min(workers, key=LAST_PICK)
