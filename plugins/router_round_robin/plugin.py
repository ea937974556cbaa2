"""Every worker in its turn, whatever its load."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from router_core import PluginSettings, Worker, hookimpl

LAST_PICK = attrgetter("last_pick")


class RoundRobin:
    """Picks the worker whose last turn is longest ago. Scores of other plugins do not count."""

    requires_api = ">=1,<2"
    several_processes = True

    class Settings(PluginSettings):
        pass

    def __init__(self, settings: Settings) -> None:
        pass

    @hookimpl
    def pick_worker(self, workers: Sequence[Worker]) -> Worker:
        return min(workers, key=LAST_PICK)
