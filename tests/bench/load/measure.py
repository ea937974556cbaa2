"""One run of a load through one contender, and the figures of it."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench.load.bodies import Script, request_body
from tests.bench.load.contenders import ROOT, Contender
from tests.bench.load.processes import Program, machine_busy_s, on_cpus
from tests.bench.load.scenarios import Scenario
from tests.bench.load.worker import line_of

CLIENT_LIMIT_S = 180.0
IDLE_S = 0.15
"""Seconds in which contenders see that the worker has closed their idle connections."""
WRK_SCRIPT = Path(__file__).with_name("wrk.lua")
LAG = re.compile(r'^router_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)

Figures = dict[str, Any]


class WorkerProgram:
    """The scripted worker in its own process."""

    def __init__(self, ports: int, cpus: set[int]) -> None:
        self.program = Program(
            [sys.executable, "-m", "tests.bench.load.worker", str(ports)],
            cpus,
            cwd=ROOT,
            log=None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.urls = [f"http://127.0.0.1:{port}" for port in json.loads(self._read())]

    def begin(self, script: Script) -> None:
        """From here on it answers by this script and counts anew."""
        self._ask(line_of(script))

    def counts(self) -> dict[str, int]:
        return self._ask("{}")

    def _ask(self, line: str) -> dict[str, int]:
        assert self.program.process.stdin is not None
        self.program.process.stdin.write(f"{line}\n".encode())
        self.program.process.stdin.flush()
        counts: dict[str, int] = json.loads(self._read())
        return counts

    def _read(self) -> bytes:
        assert self.program.process.stdout is not None
        if line := self.program.process.stdout.readline():
            return line
        raise RuntimeError("the scripted worker has ended")


def run_once(
    scenario: Scenario, contender: Contender, worker: WorkerProgram, cpus: set[int], *, has_wrk: bool
) -> Figures:
    """Raises RuntimeError where the client fails; what fails for a request is counted in ``errors``."""
    worker.begin(scenario.script)
    time.sleep(IDLE_S)
    program, looks = contender.program, _loop_lag(contender.port) if scenario.name == "stall" else None
    cpu_s = 0.0
    if program is not None:
        program.reset_peak()
        cpu_s = program.cpu_s
        if contender.resident_kib is None:
            contender.resident_kib = program.rss_kib
    busy_s, worker_s, since = machine_busy_s(), worker.program.cpu_s, time.monotonic()
    if has_wrk and scenario.may_wrk:
        figures, client_s = _wrk(scenario, contender.port, cpus)
    else:
        figures, client_s = _own_client(scenario, contender.port, cpus)
    taken_s, worker_s = time.monotonic() - since, worker.program.cpu_s - worker_s
    figures["cpu_s"] = program.cpu_s - cpu_s if program is not None else 0.0
    figures["rss_added_mib"] = (program.peak_rss_kib - (contender.resident_kib or 0)) / 1024 if program else 0.0
    other_s = machine_busy_s() - busy_s - worker_s - client_s - figures["cpu_s"]
    figures["cores_elsewhere"] = max(0.0, other_s) / taken_s
    figures["worker"] = worker.counts()
    if looks is not None:
        figures |= _lag_of(looks, _loop_lag(contender.port))
    return figures | _derived(scenario, figures)


def _derived(scenario: Scenario, figures: Figures) -> Figures:
    requests, seconds = max(1, figures["requests"]), figures["seconds"]
    each = figures["cpu_s"] / requests
    derived = {
        "rps": figures["requests"] / seconds,
        "mb_s": figures["bytes"] / seconds / 1e6,
        "cpu_us": each * 1e6,
        "cpu_ms": each * 1e3,
        "kib_each": figures["rss_added_mib"] * 1024 / scenario.load.connections,
    }
    if scenario.script.delay_s:
        for name in ("p50", "p99"):
            late_us = figures[f"latency_{name}_us"]
            derived[f"late_{name}_ms"] = late_us and late_us / 1e3 - scenario.script.delay_s * 1e3
    if scenario.script.events:
        derived["cpu_us_event"] = figures["cpu_s"] / max(1, figures["events"]) * 1e6
        derived["errors"] = figures["errors"] + (figures["requests"] * scenario.script.events - figures["events"])
    return derived


def _own_client(scenario: Scenario, port: int, cpus: set[int]) -> tuple[Figures, float]:
    asked = {"port": port, "load": asdict(scenario.load), "script": asdict(scenario.script)}
    return _client([sys.executable, "-m", "tests.bench.load.client", json.dumps(asked)], cpus)


def _wrk(scenario: Scenario, port: int, cpus: set[int]) -> tuple[Figures, float]:
    with tempfile.NamedTemporaryFile() as body:
        body.write(request_body(scenario.script))
        body.flush()
        command = ["wrk", "-t1", f"-c{scenario.load.connections}", f"-d{max(1, round(scenario.load.duration_s))}s"]
        command += ["--timeout", "30s", "-s", str(WRK_SCRIPT), f"http://127.0.0.1:{port}", "--", body.name]
        return _client(command, cpus)


def _client(command: Sequence[str], cpus: set[int]) -> tuple[Figures, float]:
    """The JSON of the last line, and the client's CPU seconds."""
    before = _children_s()
    with on_cpus(cpus):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CLIENT_LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the load client failed: {done.stderr[-400:]}")
    return json.loads(done.stdout.splitlines()[-1]), _children_s() - before


def _children_s() -> float:
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _loop_lag(port: int) -> dict[float, float]:
    """Upper bound in seconds -> looks so far that were not later."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    finally:
        connection.close()
    return {float(bound): float(count) for bound, count in LAG.findall(page)}


def _lag_of(before: dict[float, float], after: dict[float, float]) -> Figures:
    """The bound below which 99.9 % of the looks lie."""
    counts = {bound: after[bound] - before[bound] for bound in sorted(after)}
    total = counts.get(float("inf"), 0.0)
    bound = next((bound for bound, count in counts.items() if count >= 0.999 * total), None)
    return {"lag_looks": total, "lag_p999_ms": bound and bound * 1e3}
