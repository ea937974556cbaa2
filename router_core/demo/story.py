"""What happens in the demo: rollouts all the time, a worker that is killed on the way, and its return."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from router_core.demo.cast import Cast, Rollout, TurnFailed
from router_core.demo.failure import DemoFailure
from router_core.demo.printing import Stopwatch, example
from router_core.demo.processes import Process
from router_core.demo.tally import Tally

CONFIG = """\
[plugins.health]
interval_s = 0.2
max_interval_s = 0.2
"""
AT_ONCE = 3
"""Rollouts that run at the same time."""
POLL_S = 0.02
RETRY_S = 0.1


class Story:
    """Two engines, the router in front, three rollouts, and what is made to happen to them."""

    def __init__(self, directory: Path, client: aiohttp.ClientSession, port: int, cast: Cast) -> None:
        config = directory / "plugins.toml"
        config.write_text(CONFIG, encoding="utf-8")
        self._workers = [cast.worker(f"worker {letter}", directory) for letter in "AB"]
        self._router = Process("router", directory, "serve", "--config", str(config), port=port)
        self.processes = [self._router, *self._workers]
        self._client = client
        self._cast = cast
        self._watch = Stopwatch()
        self._say, self._mark = self._watch.say, self._watch.mark
        self._tally = Tally()
        self._rollouts: list[Rollout] = []
        self._is_over = False

    async def start(self) -> None:
        """Starts the engines, and then the router in front of them."""
        self._say(self._cast.introduction)
        print(self._cast.promise, flush=True)
        for worker in self._workers:
            worker.start()
        for worker in self._workers:
            await worker.ready()
            self._say(f"{worker.name} serves on {worker.url}, pid {worker.pid}")
        self._router.start(*(f"--worker={worker.url}" for worker in self._workers))
        await self._router.ready()
        self._say(f"router   serves on {self._router.url}, pid {self._router.pid}")

    async def play(self) -> None:
        """Runs the rollouts while a worker ends and returns. Raises DemoFailure when anything is not as promised."""
        await self._cast.begin(self._router.url, self._workers, self._watch)
        self._say(f"Three rollouts at once, each a session. {self._cast.rollouts}")
        print(self._cast.legend, flush=True)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(self._run())
                group.create_task(self._direct())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        await self._cast.end(self._workers, self._rollouts[-AT_ONCE:], self._watch)
        self._sum_up()

    async def keep(self) -> None:
        """Leaves all serving until somebody interrupts it."""
        workers = [worker.url for worker in self._workers]
        print(example(self._router.url, workers, self._cast.example(self._router.url)), flush=True)
        while True:
            for process in self.processes:
                process.check()
            await asyncio.sleep(1.0)

    # ---------------------------------------------------------------------------------------------------- the rollouts
    async def _run(self) -> None:
        """One rollout after another."""
        while not self._is_over:
            rollout = self._cast.rollout(len(self._rollouts) + 1)
            self._rollouts.append(rollout)
            while not rollout.is_done and not self._is_over:
                await self._turn(rollout)

    async def _turn(self, rollout: Rollout) -> None:
        """One turn; a failed one will be asked again, as rollout clients do."""
        begun_at = time.monotonic()
        what = f"{rollout.name} turn {rollout.turns + 1}"
        try:
            turn = await rollout.turn()
        except TurnFailed as error:
            self._say(f"{what} failed and is asked again: {error}")
            self._tally.fail(f"{what}: {error}", begun_at)
            await asyncio.sleep(RETRY_S)
        else:
            worker = self._name_of(turn.worker_url)
            self._tally.answered(worker, turn)
            self._say(turn.line(what, worker))

    def _name_of(self, worker_url: str | None) -> str:
        return next((worker.name for worker in self._workers if worker.url == worker_url), "nobody")

    # ------------------------------------------------------------------------------------------------ what they meet
    async def _direct(self) -> None:
        """Kills a worker, waits for its quarantine, starts it again, waits for its return and for a turn it serves."""
        worker = self._workers[0]
        await self._more_turns()
        self._tally.killed()
        worker.kill()
        self._mark(f"{worker.name} is killed (pid {worker.pid})")
        reason = await self._until_worker_is(worker, "quarantined")
        self._tally.quarantined()
        self._mark(f"GET /workers: {worker.name} is quarantined: {reason}")
        await self._more_turns()
        worker.start()
        await worker.ready()
        self._mark(f"{worker.name} is started again on {worker.url}, pid {worker.pid}")
        await self._until_worker_is(worker, "ready")
        self._mark(f"GET /workers: {worker.name} is ready again")
        served = self._tally.turns[worker.name]
        await self._until(lambda: self._tally.turns[worker.name] > served, f"{worker.name} serves a turn again")
        await self._more_turns()
        self._is_over = True

    async def _more_turns(self) -> None:
        goal = self._tally.turns.total() + self._cast.more_turns
        await self._until(lambda: self._tally.turns.total() >= goal, f"{self._cast.more_turns} more turns are served")

    async def _until_worker_is(self, worker: Process, status: str) -> str:
        """Waits until ``GET /workers`` shows this status; returns the reason that stands beside it."""
        deadline = time.monotonic() + self._cast.deadline_s
        while (told := await self._told_of(worker))["status"] != status:
            if time.monotonic() > deadline:
                raise DemoFailure(
                    f"{worker.name} is not {status} after {self._cast.deadline_s:g} s, but {told['status']}"
                )
            await asyncio.sleep(POLL_S)
        return str(told["reason"])

    async def _told_of(self, worker: Process) -> dict[str, Any]:
        async with self._client.get(f"{self._router.url}/workers") as answer:
            listed = (await answer.json())["workers"]
        return next(told for told in listed if told["url"] == worker.url)

    def _sum_up(self) -> None:
        tally = self._tally
        served = ", ".join(f"{worker.name} {tally.turns[worker.name]}" for worker in self._workers)
        self._say(f"{tally.turns.total()} turns with {tally.tokens} sampled tokens were served: {served}.")
        self._say(f"Turns that failed when the worker was killed and were asked again: {tally.failed}; later: 0.")
        self._say("All as promised.")

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self._cast.deadline_s
        while not condition():
            if time.monotonic() > deadline:
                raise DemoFailure(f"not within {self._cast.deadline_s:g} s: {what}")
            await asyncio.sleep(POLL_S)
