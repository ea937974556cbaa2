"""The command line: what it says, where it says it, and with which exit status."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from router_core.build import build_name
from router_core.cli import main


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plugins.toml of the repository, no variables of the machine, a path that is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in list(__import__("os").environ):
        if name.upper().startswith("ROUTER__"):
            monkeypatch.delenv(name)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        status = main(arguments)
    except SystemExit as end:
        status = int(end.code or 0)
    told = capsys.readouterr()
    return status, told.out, told.err


OK = "ok (plugins were made, not started): "
BUILD = f"build: {build_name()}"


def test_check_says_what_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "check", "--set", "enabled=health,round_robin") == (
        0,
        f"{OK}2 made, on: health, round_robin; file: none; {BUILD}\n",
        "",
    )
    assert run(capsys, "check", "--set", "enabled=[]") == (0, f"{OK}0 made, on: none; file: none; {BUILD}\n", "")
    status, out, _ = run(capsys, "check", "--set", "enabled=health", "--enable", "round_robin", "--disable", "health")
    assert (status, out) == (0, f"{OK}1 made, on: round_robin; file: none; {BUILD}\n")


def test_check_needs_no_port(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "check", "--host", "no-such-host.invalid", "--port", "1")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--config", "nope.toml"], "nope.toml: there is no such file"),
        (["--enable", "healht"], "--enable: enabled: there is no plugin 'healht'; did you mean 'health'?"),
        (["--disable", "nobody"], "--disable: 'nobody' is not enabled; enabled are: "),
        (["--profile", "p"], "--profile: there is no profile 'p'; profiles: none"),
        (
            ["--set", "plugins.health.interval_s=soon"],
            "--set plugins.health.interval_s: Input should be a valid number",
        ),
        (["--set", "prot=1"], "--set prot: router.prot: unknown key"),
        (["--set", "nonsense"], "--set: 'nonsense' is not KEY=VALUE"),
        (["--port", "70000"], "--port: router.port: "),
        (["--worker", "127.0.0.1:9"], "--worker: router.workers: "),
        (["--middleware-paths", "json:Nothing"], "--middleware-paths: 'json:Nothing': json has no 'Nothing'"),
        (["--slime-router-middleware-paths", "nope"], "--slime-router-middleware-paths: 'nope' is not of the form"),
    ],
)
def test_a_wrong_configuration_is_one_line_and_exit_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    for command in ("check", "serve", "plugins"):
        status, out, told = run(capsys, command, *arguments)
        assert (status, out) == (2, "")
        assert told.startswith(f"router-core: {line}")
        assert told.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["serve", "--prot", "1"], ["serve", "--port", "many"]])
def test_a_wrong_command_line_is_exit_status_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    status, _, told = run(capsys, *arguments)
    assert status == 2
    assert "router-core" in told


def test_a_wrong_file_is_named_with_its_key(capsys: pytest.CaptureFixture[str]) -> None:
    Path("plugins.toml").write_text("[plugins.health]\ninterval = 1\n")
    status, _, told = run(capsys, "check")
    assert (status, told) == (
        2,
        "router-core: plugins.toml: plugins.health.interval: unknown key; did you mean 'interval_s'?\n",
    )


def test_variables_of_the_environment_hold(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTER__ENABLED", "round_robin")
    assert run(capsys, "check")[1] == f"{OK}1 made, on: round_robin; file: none; {BUILD}\n"
    monkeypatch.setenv("ROUTER__PROT", "1")
    assert run(capsys, "check")[2].startswith("router-core: environment variable ROUTER__PROT: prot: no such setting")


def test_middleware_paths_are_found_in_the_working_directory(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine_of_the_directory.py").write_text(
        "from router_core import hookimpl\n\n\nclass MyPlugin:\n    @hookimpl\n    def response_end(self): ...\n"
    )
    arguments = ["check", "--set", "enabled=[]", "--middleware-paths", "mine_of_the_directory:MyPlugin"]
    assert run(capsys, *arguments) == (0, f"{OK}1 made, on: my_plugin; file: none; {BUILD}\n", "")


def test_a_profile_may_hold_for_the_whole_process(capsys: pytest.CaptureFixture[str]) -> None:
    Path("plugins.toml").write_text(
        'enabled = ["health", "least_inflight"]\n[profiles.turns]\nenable = ["round_robin"]\ndisable = ["health"]\n'
    )
    assert run(capsys, "check")[1] == f"{OK}3 made, on: health, least_inflight; file: plugins.toml; {BUILD}\n"
    assert (
        run(capsys, "check", "--profile", "turns")[1]
        == f"{OK}3 made, on: least_inflight, round_robin; file: plugins.toml; {BUILD}\n"
    )


def test_the_list_of_plugins_shows_order_state_origin_and_hooks(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "plugins", "--set", "enabled=round_robin", "--set", "router.available=health")
    assert status == 0
    head, *rows = out.splitlines()
    assert head.split() == ["ORDER", "NAME", "STATE", "VERSION", "DISTRIBUTION", "HOOKS"]
    table = {row.split()[1]: row.split() for row in rows}
    assert table["round_robin"][:5:2] + table["round_robin"][5:] == ["1", "on", "router-core", "pick_worker"]
    assert table["health"][0] == "2"
    assert table["health"][2] == "available"
    assert table["least_inflight"][0] == "-"
    assert table["least_inflight"][2] == "off"
    assert rows[-1].endswith("(not imported)")


@pytest.mark.parametrize("command", [["--version"], ["--help"], ["serve", "--help"]])
def test_help_and_version_are_quick_to_have(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    status, out, _ = run(capsys, *command)
    assert status == 0
    assert "router-core" in out


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "router_core", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("router-core ")


def test_a_demo_on_no_port_is_refused_before_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    told = "router-core: --port: a port is a number from 0 to 65535, not 99999\n"
    assert run(capsys, "demo", "--port", "99999") == (2, "", told)


def test_a_reader_that_has_enough_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "router_core", "plugins"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
