"""``router-core new-plugin``: what it writes is installed, listed and tested unchanged; wrong names are refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router_core.cli import main

HEADS = ["What it does", "When to use it", "Settings", "Hooks and order", "What it keeps", "Routes"]


def test_what_it_writes_is_a_package_whose_tests_pass(environment: Callable[..., Any], tmp_path: Path) -> None:
    project = tmp_path / "mine"
    assert main(["new-plugin", "rack_first", "--directory", str(project)]) == 0
    stranger = environment(project)
    listed = stranger.run("-m", "router_core", "plugins").splitlines()
    row = next(line for line in listed if " rack_first " in line)
    assert row.split()[:5] == ["-", "rack_first", "off", "0.1.0", "router-rack-first"]
    said = stranger.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(project / "tests"))
    assert "3 passed" in said
    listed = stranger.run("-m", "router_core", "plugins", "--enable", "rack_first").splitlines()
    assert any(line.split()[1:3] == ["rack_first", "on"] and "score_workers" in line for line in listed)


def test_its_readme_has_the_heads_of_a_plugins_readme(tmp_path: Path) -> None:
    assert main(["new-plugin", "mine", "--directory", str(tmp_path / "new")]) == 0
    text = (tmp_path / "new" / "README.md").read_text(encoding="utf-8")
    assert [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")] == HEADS
    assert "$" not in "".join(file.read_text(encoding="utf-8") for file in tmp_path.rglob("*.*") if file.is_file())


def test_what_it_writes_is_clean_for_the_linter(tmp_path: Path) -> None:
    ruff = Path(sys.executable).parent / "ruff"
    command = [str(ruff)] if ruff.exists() else [sys.executable, "-m", "ruff"]
    if subprocess.run([*command, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("ruff is not installed")
    assert main(["new-plugin", "mine", "--directory", str(tmp_path / "new")]) == 0
    for what in (
        ["check", "--select", "E,F,UP,B", "--line-length", "120"],
        ["format", "--check", "--line-length", "120"],
    ):
        done = subprocess.run(
            [*command, *what, "--isolated", str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["Mine", "1st", "my-plugin", "", "a b", "ünder", "mine_", "a__b", "x" * 51, "../up"])
def test_a_wrong_name_is_refused_with_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-plugin", name, "--directory", str(tmp_path / "new")]) == 2
    said = capsys.readouterr().err
    assert "is no plugin name: a-z, 0-9 and single _" in said and said.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_the_name_of_an_installed_plugin_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-plugin", "health", "--directory", str(tmp_path / "new")]) == 2
    assert "'health' is taken by the installed distribution router-core" in capsys.readouterr().err


def test_a_word_of_python_is_no_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-plugin", "class", "--directory", str(tmp_path / "new")]) == 2
    assert "'class' is a word of Python's" in capsys.readouterr().err


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept.txt").write_text("mine", encoding="utf-8")
    assert main(["new-plugin", "mine", "--directory", str(tmp_path)]) == 2
    assert "exists and is not empty" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["kept.txt"]
