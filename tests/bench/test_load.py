"""The load benchmark measures what it says: each scenario runs with a tiny load; counts are looked at, never times."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from router_core.build import build_name
from router_core.registry import ENTRY_POINTS
from tests.bench.load.__main__ import parse, play
from tests.bench.load.bodies import Script, answer_body, event, request_body, written_at_ns
from tests.bench.load.contenders import DIRECT, Contender, peer_command
from tests.bench.load.goals import GOALS, goals_table
from tests.bench.load.measure import WorkerProgram
from tests.bench.load.noop_plugins import HOOKS
from tests.bench.load.rounds import Bench, Result
from tests.bench.load.routers import ALL, PLUGIN_NAMES, enabled_by
from tests.bench.load.scenarios import BY_NAME, SCENARIOS, Scenario, shrunk
from tests.bench.load.table import added, cell, figure, ratio, shown, table

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads processes from /proc (Linux)")

CPUS = set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()
FORWARDER = """
import asyncio, sys

async def pump(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def main():
    host, port = sys.argv[2].split(":")
    async def serve(reader, writer):
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer), return_exceptions=True)
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()

asyncio.run(main())
"""


@pytest.fixture
def worker() -> Iterator[WorkerProgram]:
    program = WorkerProgram(2, CPUS)
    yield program
    program.program.stop()


def bench(worker: WorkerProgram, peers: dict[str, str] | None = None, *, has_wrk: bool = False) -> Bench:
    return Bench(worker, CPUS, CPUS, peers or {}, has_wrk, time.monotonic() + 60, say=lambda line: None)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_each_scenario_counts_what_passed(scenario: Scenario, worker: WorkerProgram) -> None:
    small = shrunk(scenario)
    measured = "hooks" if scenario.name == "hooks" else "default" if scenario.name == "stall" else "bare"
    result = bench(worker).play(small, [DIRECT, measured] if scenario.name != "stall" else [measured], 1)
    assert result.failed == {}
    for name, (run,) in result.runs.items():
        assert run is not None, name
        assert run["errors"] == 0, run["error_kinds"]
        assert run["worker"]["requests"] == run["requests"] >= small.load.connections
        assert run["worker"]["cut"] == 0
        if small.script.events:
            assert run["events"] == run["worker"]["events"] == run["requests"] * small.script.events
        else:
            assert run["sizes"] == [len(answer_body(small.script))]
        if small.script.delay_s:
            assert run["worker"]["peak_inflight"] > 1
        assert (run["cpu_us"] > 0) is (name != DIRECT)
        assert f"| {name} |" in table(result, None)


def test_hooks_and_plugins_are_switched_on_as_their_names_say(worker: WorkerProgram) -> None:
    """All that the two scenarios compare start, which is most of what could be wrong with them."""
    assert set(ALL) == {point.name for point in entry_points(group=ENTRY_POINTS) if point.dist.name == "router-core"}
    assert [enabled_by(name)[-1] for name in PLUGIN_NAMES[1:-1]] == list(ALL)
    assert all(
        len(hook.__dict__.keys() & {name for name in dir(hook) if not name.startswith("_")}) == 1 for hook in HOOKS
    )
    with pytest.raises(ValueError, match="no configuration 'plugin:nonsense'"):
        enabled_by("plugin:nonsense")
    result = bench(worker).play(shrunk(BY_NAME["hooks"]), ["hook:AroundUpstream", "all"], 1)
    assert result.failed == {}
    assert [run["errors"] for runs in result.runs.values() for run in runs if run] == [0, 0]


def test_any_command_line_is_a_peer(worker: WorkerProgram, tmp_path: Path) -> None:
    forwarder = tmp_path / "forwarder.py"
    forwarder.write_text(FORWARDER)
    peer = f"{shlex.quote(sys.executable)} {forwarder} {{port}} {{address}}"
    names = [DIRECT, "forwarder", "broken", "nowhere"]
    peers = {"forwarder": peer, "broken": f"{sys.executable} -c exit('no_such_flag')", "nowhere": "no-such-program"}
    result = bench(worker, peers).play(shrunk(BY_NAME["small"]), names, 2)
    assert [len(result.runs[name]) for name in (DIRECT, "forwarder")] == [2, 2]
    assert figure(result, "forwarder", "errors") == 0
    assert ratio(result, "forwarder", "forwarder", "cpu_us") == 1.0
    assert "no_such_flag" in result.failed["broken"]
    assert "nowhere" in result.failed["nowhere"]


def test_a_contender_that_answers_wrongly_has_errors(worker: WorkerProgram) -> None:
    """What a proxy loses must not pass for speed."""
    contender = Contender(DIRECT, worker.urls, CPUS)
    contender.port = 9  # nobody listens
    own = bench(worker)
    run = own._run(shrunk(BY_NAME["small"]), contender)
    assert run is not None
    assert (run["requests"], run["errors"]) == (0, 8)


def test_placeholders_of_a_peer_are_filled_in(tmp_path: Path) -> None:
    workers = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    made = peer_command(
        "x --listen {port} --to {workers} --each={worker} -d {directory} {workers_csv}", tmp_path, 7, workers
    )
    each = [f"--each={url}" for url in workers]
    assert made == ["x", "--listen", "7", "--to", *workers, *each, "-d", str(tmp_path), ",".join(workers)]
    made = peer_command("nginx -p {directory} -c @tests/bench/load/peers/nginx.conf", tmp_path, 7, workers)
    written = Path(made[-1]).read_text()
    assert "listen 127.0.0.1:7 " in written
    assert [line.strip() for line in written.splitlines() if line.strip().startswith("server 1")] == [
        f"server 127.0.0.1:{number} max_fails=0;" for number in (1, 2)
    ]


def test_the_bodies_are_what_a_worker_would_say() -> None:
    script = Script(prompt_tokens=10, tokens=3)
    answer, asked = json.loads(answer_body(script)), json.loads(request_body(script))
    assert len(asked["input_ids"]) == answer["meta_info"]["prompt_tokens"] == 10
    assert len(answer["output_ids"]) == len(answer["meta_info"]["output_token_logprobs"]) == 3
    assert 300 < len(answer_body(Script())) < 500
    assert 30_000 < len(request_body(BY_NAME["rollout"].script)) < 36_000
    assert 65_000 < len(answer_body(BY_NAME["rollout"].script)) < 75_000
    assert written_at_ns(event(3, 12345)) == 12345
    assert written_at_ns(b"data: [DONE]") is None


def result_of(**runs: list[dict[str, float] | None]) -> Result:
    return Result(BY_NAME["small"], dict(runs))


def test_ratios_are_those_within_a_round() -> None:
    result = result_of(
        direct=[{"latency_p50_us": 10.0}, {"latency_p50_us": 20.0}, {"latency_p50_us": 30.0}],
        default=[
            {"cpu_us": 10.0, "latency_p50_us": 30.0, "errors": 0},
            None,
            {"cpu_us": 40.0, "latency_p50_us": 80.0, "errors": 2},
        ],
        smg=[
            {"cpu_us": 100.0, "latency_p50_us": 20.0},
            {"cpu_us": 1.0, "latency_p50_us": 21.0},
            {"cpu_us": 100.0, "latency_p50_us": 40.0},
        ],
    )
    assert ratio(result, "default", "smg", "cpu_us") == 0.25
    assert added(result, "default", "latency_p50_us") == 35.0
    assert cell(result, "default", "added_ratio", "smg") == 3.5
    assert figure(result, "default", "errors") == 2
    assert figure(result, "nobody", "cpu_us") is None
    assert ratio(result, "default", "nobody", "cpu_us") is None
    assert "| default | – | 25 | 0.25 |" in table(result, "smg")
    assert [shown(value) for value in (None, 0.0, 0.123, 12.34, 1234.5)] == ["–", "0", "0.12", "12.3", "1,234"]


def test_goals_are_judged_by_their_direction() -> None:
    floor, ceiling = next(goal for goal in GOALS if goal.is_floor), next(goal for goal in GOALS if not goal.is_floor)
    assert ceiling.verdict(None) == "not measured"
    assert [ceiling.verdict(value) for value in (ceiling.aim, ceiling.least, ceiling.least + 1)] == [
        "aim met",
        "met",
        "missed",
    ]
    assert [floor.verdict(value) for value in (floor.aim, floor.least - 1)] == ["aim met", "missed"]
    assert "not measured" in goals_table({})


def test_one_command_writes_figures_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures"
    play(
        parse(
            ["--tiny", "--rounds", "1", "--scenarios", "small", "--only", "bare", "--client", "own", "--out", str(out)]
        )
    )
    record = json.loads(out.with_suffix(".json").read_text())
    assert set(record["scenarios"]["small"]["runs"]) == {"direct", "bare"}
    assert record["machine"]["build"] == build_name()
    assert f"{record['machine']['commit']}, {build_name()};" in out.with_suffix(".md").read_text()
    assert "### Goals" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        parse(["--scenarios", "nonsense"])


def test_it_ends_when_its_time_is_over(worker: WorkerProgram) -> None:
    over = Bench(worker, CPUS, CPUS, {}, False, time.monotonic() - 1, say=lambda line: None)
    result = over.play(shrunk(BY_NAME["small"]), [DIRECT], 5)
    assert result.runs == {}
    assert "time is over" in result.failed["the rest"]
