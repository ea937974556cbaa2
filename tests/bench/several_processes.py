"""What a request costs in a router of several processes: python -m tests.bench.several_processes [--rounds 5].

One and two processes (and, with ``--before DIR``, those of another checkout) beside each other, round after round, each
with 64 connections of small requests: without a session (``none``), each connection with a session of its own
(``kept``), each request of another of 64 sessions (``mixed``), and each request of a session on a connection of its
own (``fresh``). ``--work-us`` makes each request cost so much more, by a plugin. All processes of a router share one
core, which they fill; client and worker have the others. CPU is from the processes' CPU clocks. The last column is
``N x CPU(1) / CPU(N)``: what N processes on N cores of their own serve in comparison with one, as long as nothing but
CPU bounds them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import httptools
import uvloop

from router_core import hookimpl
from router_core.config import DEFAULT_ENABLED
from tests.bench.load.bodies import Script, request_body
from tests.bench.load.contenders import ROOT
from tests.bench.load.measure import WorkerProgram
from tests.bench.load.processes import Program, on_cpus

CONNECTIONS = 64
MODES = ("none", "kept", "mixed", "fresh")
START_S = 30.0
CPUS = sorted(os.sched_getaffinity(0))
ROUTER_CPUS, OTHER_CPUS = {CPUS[0]}, set(CPUS[1:]) or {CPUS[0]}


class Work:
    """Burns CPU for ``BENCH_WORK_US`` at each request."""

    several_processes = True

    def __init__(self, settings: object) -> None:
        self._seconds = float(os.environ.get("BENCH_WORK_US", "0")) / 1e6

    @hookimpl
    async def request_start(self, exchange: Any) -> None:
        end = time.thread_time() + self._seconds
        while time.thread_time() < end:
            pass


# --------------------------------------------------------------------------------------------------- the client
class Agent(asyncio.Protocol):
    """One connection after another, or one for all of its requests."""

    def __init__(self, load: Client, number: int) -> None:
        self._load = load
        self._number = number
        self._count = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)
        self._send()

    def _send(self) -> None:
        self._count += 1
        self._transport.write(self._load.request(self._number, self._count))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._load.count(self._parser.get_status_code())
        if self._load.is_over():
            self._transport.abort()
            self._load.end()
        elif self._load.mode == "fresh":
            self._transport.abort()
            self._load.connect(self._number)
        else:
            self._send()


class Client:
    """So many agents, until the time is over."""

    def __init__(self, port: int, mode: str, seconds: float) -> None:
        self.mode = mode
        self._port = port
        self._end = time.monotonic() + seconds
        self._tasks: set[asyncio.Task[Any]] = set()
        body = request_body(Script())
        head = f"POST /generate HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        tail = b"content-length: %d\r\n\r\n%b" % (len(body), body)
        named = [f"{head}x-session-id: agent-{number}\r\n".encode() + tail for number in range(CONNECTIONS)]
        self._requests = [head.encode() + tail] * CONNECTIONS if mode == "none" else named
        self._left = CONNECTIONS
        self._over = asyncio.Event()
        self.answered = self.failed = 0

    def request(self, number: int, count: int) -> bytes:
        return self._requests[(number + count * 7) % CONNECTIONS if self.mode == "mixed" else number]

    def count(self, status: int) -> None:
        self.answered += 1
        self.failed += status != 200

    def is_over(self) -> bool:
        return time.monotonic() > self._end

    def end(self) -> None:
        self._left -= 1
        if not self._left:
            self._over.set()

    def connect(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.create_connection(lambda: Agent(self, number), "127.0.0.1", self._port))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self) -> None:
        for number in range(CONNECTIONS):
            self.connect(number)
        await asyncio.wait_for(self._over.wait(), 120)


def run_client(port: int, mode: str, seconds: float) -> None:
    async def run() -> None:
        client = Client(port, mode, seconds)
        began = time.monotonic()
        await client.run()
        rate = client.answered / (time.monotonic() - began)
        print(json.dumps({"requests": client.answered, "failed": client.failed, "rps": rate}))

    uvloop.run(run())


# --------------------------------------------------------------------------------------------------- the rounds
class Router:
    """A router that runs; ``checkout``: where its sources are."""

    def __init__(self, checkout: Path, processes: int, worker: str, directory: Path, work_us: int) -> None:
        ready = directory / f"{checkout.name}-{processes}.json"
        settings = {"processes": processes, "port": 0, "ready_file": str(ready), "log_level": "error"}
        config = directory / f"{checkout.name}-{processes}.toml"
        config.write_text(
            f"enabled = {json.dumps(list(DEFAULT_ENABLED))}\n[router]\nworkers = [{json.dumps(worker)}]\n"
            + "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        )
        paths = os.pathsep.join(map(str, (checkout, checkout / "plugins", ROOT)))
        env = {"PYTHONPATH": paths, "BENCH_WORK_US": str(work_us)}
        more = ["--middleware-paths", "tests.bench.several_processes:Work"] if work_us else []
        command = [sys.executable, "-m", "router_core", "serve", "--config", str(config), *more]
        self.program = Program(command, ROUTER_CPUS, cwd=checkout, env=env, log=None)
        end = time.monotonic() + START_S
        while not ready.exists():
            if time.monotonic() > end:
                raise RuntimeError(f"no router of {processes} processes")
            time.sleep(0.05)
        self.port = json.loads(ready.read_text())["port"]

    def measure(self, mode: str, seconds: float) -> dict[str, float]:
        asked = ("--client", str(self.port), mode, str(seconds))
        command = [sys.executable, "-m", "tests.bench.several_processes", *asked]
        before = self.program.cpu_s
        with on_cpus(OTHER_CPUS):
            ended = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
        told: dict[str, float] = json.loads(ended.stdout)
        return {"us": (self.program.cpu_s - before) / told["requests"] * 1e6, **told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--work-us", type=int, default=0)
    parser.add_argument("--before", type=Path, help="another checkout, to compare its processes with")
    parser.add_argument("--client", nargs=3, help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.client:
        run_client(int(said.client[0]), said.client[1], float(said.client[2]))
        return
    worker = WorkerProgram(1, OTHER_CPUS)
    worker.begin(Script())
    routers: dict[str, Router] = {}
    with tempfile.TemporaryDirectory() as directory:
        try:
            wanted = {"1": (ROOT, 1), str(said.processes): (ROOT, said.processes)}
            if said.before:
                wanted["before"] = (said.before.resolve(), said.processes)
            for name, (checkout, processes) in wanted.items():
                routers[name] = Router(checkout, processes, worker.urls[0], Path(directory), said.work_us)
            found: dict[tuple[str, str], list[dict[str, float]]] = {}
            for number in range(said.rounds + 1):  # the first is thrown away
                for mode in said.modes:
                    for name in list(routers)[:: 1 if number % 2 else -1]:
                        figures = routers[name].measure(mode, said.seconds)
                        if number:
                            found.setdefault((mode, name), []).append(figures)
        finally:
            for router in routers.values():
                router.program.stop()
            worker.program.stop()
    print("| sessions | processes | CPU us a request | requests/s | failed | on cores of their own |")
    print("|---|---|---|---|---|---|")
    for (mode, name), rounds in found.items():
        many = 1 if name == "1" else said.processes
        ratios = [many * one["us"] / each["us"] for one, each in zip(found[mode, "1"], rounds, strict=True)]
        us, rps = median(each["us"] for each in rounds), median(each["rps"] for each in rounds)
        failed = sum(each["failed"] for each in rounds)
        print(f"| {mode} | {name} | {us:.0f} | {rps:.0f} | {failed:.0f} | {median(ratios):.2f} |")


if __name__ == "__main__":
    main()
