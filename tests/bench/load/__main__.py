"""Measures what a request costs in this router and in others: ``python -m tests.bench.load --help``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from router_core.build import build_name
from tests.bench.load.contenders import ROOT
from tests.bench.load.goals import goals_table
from tests.bench.load.measure import WorkerProgram
from tests.bench.load.rounds import Bench, Result, as_json, names_of
from tests.bench.load.scenarios import BY_NAME, SCENARIOS, Scenario, shrunk
from tests.bench.load.table import table


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.load",
        description="What a request costs in this router and in others. Recipes for peers: tests/bench/README.md.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="scenarios:\n" + "\n".join(f"  {each.name:10}{each.sense}" for each in SCENARIOS),
    )
    parser.add_argument("--scenarios", default=",".join(BY_NAME), help="comma-separated; all unless given")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND", help="another proxy; repeatable")
    parser.add_argument("--reference", metavar="NAME", help="the peer to which ratios are given (default: the first)")
    parser.add_argument("--only", default="", metavar="NAMES", help="these contenders alone, and direct")
    parser.add_argument(
        "--client", choices=("auto", "own", "wrk"), default="auto", help="auto: wrk where it can be had"
    )
    parser.add_argument("--workers", type=int, default=4, help="scripted workers (default: 4)")
    parser.add_argument("--max-minutes", type=float, default=90, help="no run begins after them (default: 90)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="writes FILE.json (every run) and FILE.md (the tables)"
    )
    parser.add_argument("--tiny", action="store_true", help="loads so small that their figures mean nothing")
    options = parser.parse_args(arguments)
    options.peers = dict(peer.partition("=")[::2] for peer in options.peer)
    options.reference = options.reference or next(iter(options.peers), None)
    options.scenarios = [name for name in options.scenarios.split(",") if name]
    options.only = [name for name in options.only.split(",") if name]
    if unknown := [name for name in options.scenarios if name not in BY_NAME]:
        parser.error(f"no such scenario: {', '.join(unknown)}")
    if options.client == "wrk" and not shutil.which("wrk"):
        parser.error("wrk is not installed")
    return options


def machine() -> dict[str, Any]:
    """Where it was measured."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": model[0].partition(":")[2].strip() if model else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "system": platform.release(),
        "commit": commit.stdout.strip(),
        "build": build_name(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": os.getloadavg()[0],
    }


def cores() -> tuple[set[int], set[int]]:
    """One core for what is measured, the others for worker and client."""
    first, *others = sorted(os.sched_getaffinity(0))
    return {first}, set(others) or {first}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def report(results: dict[str, Result], options: argparse.Namespace, about: dict[str, Any]) -> str:
    head = (
        f"{about['cpu']}, {about['cores']} cores, Python {about['python']}, {about['date']}, "
        f"commit {about['commit']}, {about['build']}; the proxy alone on one core; medians of {options.rounds} rounds; "
        f"load of the machine at the start {about['load']:.1f}"
    )
    tables = [table(result, options.reference) for result in results.values()]
    return "\n\n".join([head, *tables, "### Goals", goals_table(results)]) + "\n"


def save(out: Path | None, results: dict[str, Result], options: argparse.Namespace, about: dict[str, Any]) -> None:
    if out is None:
        return
    record = {
        "machine": about,
        "rounds": options.rounds,
        "peers": options.peers,
        "scenarios": {name: as_json(result) for name, result in results.items()},
    }
    out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(report(results, options, about), encoding="utf-8")


def play(options: argparse.Namespace) -> dict[str, Result]:
    """All scenarios that were asked for; what there is is saved after each."""
    about, (proxy_cpus, other_cpus) = machine(), cores()
    worker = WorkerProgram(options.workers, other_cpus)
    results: dict[str, Result] = {}
    try:
        bench = Bench(
            worker=worker,
            proxy_cpus=proxy_cpus,
            other_cpus=other_cpus,
            peers=options.peers,
            has_wrk=options.client != "own" and shutil.which("wrk") is not None,
            end=time.monotonic() + options.max_minutes * 60,
            say=say,
        )
        for name in options.scenarios:
            scenario: Scenario = shrunk(BY_NAME[name]) if options.tiny else BY_NAME[name]
            results[name] = bench.play(scenario, names_of(scenario, list(options.peers), options.only), options.rounds)
            say("\n" + table(results[name], options.reference) + "\n")
            save(options.out, results, options, about)
    finally:
        worker.program.stop()
    print(report(results, options, about))
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # contenders are ended on the way out
    play(parse(arguments))


if __name__ == "__main__":
    main()
