"""The demo as a newcomer runs it: a command, its output, its exit status, and nothing left behind."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from router_core.testing import exchange_once

COMMAND = [sys.executable, "-m", "router_core", "demo"]
WITHIN_S = 50


@contextmanager
def started_demo(*flags: str) -> Iterator[subprocess.Popen[str]]:
    """A demo under way, with its output as text; ended at the latest with the block."""
    with subprocess.Popen(
        [*COMMAND, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "ROUTER__PORT": "1", "ROUTER__ENABLED": "[]"},
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """The lines it prints up to the one with these words."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return "".join(lines)
    raise AssertionError(f"{words!r} was not printed: {''.join(lines)}")


def pids_in(output: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"pid (\d+)", output)]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def output() -> str:
    """All that one whole demo prints; the environment of whoever runs it does not matter."""
    with started_demo() as process:
        said, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, said
    return said


def test_the_demo_ends_as_promised(output: str) -> None:
    assert output.rstrip().endswith("All as promised.")


def test_each_turn_is_shown_with_worker_tokens_logprob_and_experts(output: str) -> None:
    turns = re.findall(
        r"s  r\d+ turn \d+ +worker [AB] +(\d+) +(\d+) +-\d+\.\d{3} +(\d+)x4x2 +(?:-|\d+) +\d+.*'", output
    )
    assert len(turns) >= 12
    assert all(int(prompt) + int(sampled) - 1 == int(rows) for prompt, sampled, rows in turns)


def test_both_workers_serve_and_turns_are_streamed_and_not(output: str) -> None:
    assert set(re.findall(r"turn \d+ +(worker [AB]) ", output)) == {"worker A", "worker B"}
    events = re.findall(r"x4x2 +(-|\d+) ", output)
    assert "-" in events
    assert any(count.isdigit() for count in events)


def test_the_killed_worker_is_quarantined_and_comes_back(output: str) -> None:
    told = re.findall(r"(?m)^ *[\d.]+s  --- (.*)$", output)
    assert [re.sub(r"[:,(].*", "", line).strip() for line in told] == [
        "worker A is killed",
        "GET /workers",
        "worker A is started again on http",
        "GET /workers",
    ]
    assert "is quarantined: " in told[1]
    assert "Connect" in told[1]
    assert "is ready again" in told[3]
    assert "worker A" in output.split("is ready again")[1].split("All as promised")[0]


def test_no_process_of_the_demo_is_left(output: str) -> None:
    pids = pids_in(output)
    assert len(set(pids)) == 4  # two engines, the router, and the engine that was started again
    assert not any(is_running(pid) for pid in pids)


async def test_kept_all_go_on_serving_until_they_are_interrupted() -> None:
    with started_demo("--keep") as process:
        output = read_until(process, "curl http")
        port = int(re.findall(r"router http://127\.0\.0\.1:(\d+)", output)[0])
        answer = await exchange_once(port, json={"text": "Hello", "sampling_params": {"max_new_tokens": 4}})
        assert answer.status == 200
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130
    assert not any(is_running(pid) for pid in pids_in(output))


def test_a_demo_that_is_terminated_ends_its_processes() -> None:
    with started_demo() as process:
        output = read_until(process, "worker A serves on")
        process.terminate()
        process.communicate(timeout=WITHIN_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert not any(is_running(pid) for pid in pids_in(output))


def test_a_taken_port_is_said_in_one_line(unused_tcp_port: int) -> None:
    with socket.socket() as taken, started_demo("--port", str(unused_tcp_port)) as process:
        taken.bind(("127.0.0.1", unused_tcp_port))
        taken.listen()
        said, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 2
    assert said.startswith(f"router-core: --port: router.port: cannot listen on 127.0.0.1:{unused_tcp_port}")
    assert said.count("\n") == 1  # nothing was started
