"""Rounds: every contender once, in turn, there and back, so that what the machine does meanwhile hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tests.bench.load.contenders import DIRECT, Contender, StartError
from tests.bench.load.measure import Figures, WorkerProgram, run_once
from tests.bench.load.scenarios import Scenario

Say = Callable[[str], None]


@dataclass(slots=True)
class Result:
    """What a scenario gave."""

    scenario: Scenario
    runs: dict[str, list[Figures | None]] = field(default_factory=dict)
    """Contender's name -> its run of each round; None where it failed."""
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and how all of it runs."""

    worker: WorkerProgram
    proxy_cpus: set[int]
    other_cpus: set[int]
    peers: Mapping[str, str]
    has_wrk: bool
    end: float
    """Monotonic time after which no run begins."""
    say: Say

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.end

    def play(self, scenario: Scenario, names: Sequence[str], rounds: int) -> Result:
        """Starts the contenders, measures them, ends them."""
        result = Result(scenario)
        with ExitStack() as stack:
            contenders = self._start(scenario, names, result, stack)
            for number in range(rounds):
                for contender in contenders if number % 2 == 0 else contenders[::-1]:
                    if self.is_over:
                        result.failed.setdefault("the rest", "the time is over (--max-minutes)")
                        return result
                    figures = self._run(scenario, contender)
                    result.runs.setdefault(contender.name, []).append(figures)
                    self.say(f"{scenario.name} {number + 1}/{rounds} {contender.name}: {_told(figures)}")
        return result

    def _start(self, scenario: Scenario, names: Sequence[str], result: Result, stack: ExitStack) -> list[Contender]:
        starting, started = [], []
        self.worker.begin(scenario.script)
        for name in names:
            try:
                contender = Contender(
                    *(name, self.worker.urls, self.proxy_cpus),
                    peer=self.peers.get(name),
                    settings=scenario.settings,
                )
            except StartError as error:
                result.failed[name] = str(error)
                continue
            stack.callback(contender.stop)
            starting.append(contender)
        for contender in starting:
            try:
                contender.wait_ready()
            except StartError as error:
                result.failed[contender.name] = str(error)
                contender.stop()
                self.say(f"{scenario.name}: {error}")
            else:
                started.append(contender)
        return started

    def _run(self, scenario: Scenario, contender: Contender) -> Figures | None:
        try:
            return run_once(scenario, contender, self.worker, self.other_cpus, has_wrk=self.has_wrk)
        except (RuntimeError, OSError) as error:
            self.say(f"{scenario.name} {contender.name}: {error}")
            return None


def _told(figures: Figures | None) -> str:
    if figures is None:
        return "failed"
    return f"{figures['requests']} requests, {figures['cpu_us']:.0f} us CPU each, {figures['errors']} errors"


def names_of(scenario: Scenario, peers: Sequence[str], wanted: Sequence[str] = ()) -> list[str]:
    """Who takes part: the scenario's configurations and the peers, or those of ``wanted`` among them."""
    names = [*scenario.routers, *(peers if scenario.has_peers else ())]
    return [name for name in names if not wanted or name in wanted or name == DIRECT]


def as_json(result: Result) -> dict[str, Any]:
    return {"sense": result.scenario.sense, "failed": result.failed, "runs": result.runs}
