"""Of two random workers the one with fewer requests in flight."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

from router_core import PluginSettings, Scores, Worker, hookimpl
from router_power_of_two.settings import PowerOfTwoSettings


class PowerOfTwo:
    """Scores the winner of a draw 1 and all others 0, so that affinity with a higher weight still counts."""

    requires_api: ClassVar[str] = ">=1,<2"
    several_processes: ClassVar[bool] = True
    Settings: ClassVar[type[PluginSettings]] = PowerOfTwoSettings

    def __init__(self, settings: PowerOfTwoSettings) -> None:
        self._random = random.Random(settings.seed)

    @hookimpl
    def score_workers(self, workers: Sequence[Worker]) -> Scores:
        return {winner(workers, self._random): 1.0}


def winner(workers: Sequence[Worker], draws: random.Random) -> Worker:
    """The less loaded of two different ones; of equals the one that was picked longest ago."""
    if len(workers) == 1:
        return workers[0]
    count = len(workers)
    place = int(draws.random() * count)
    first, second = workers[place], workers[(place + 1 + int(draws.random() * (count - 1))) % count]
    if first.inflight != second.inflight:
        return first if first.inflight < second.inflight else second
    return first if first.last_pick <= second.last_pick else second
