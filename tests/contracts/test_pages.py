"""Code blocks of the pages run: Python as it stands, commands without serving, curl at a router."""

from __future__ import annotations

import inspect
import re
import runpy
import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router_core.app import Application
from router_core.cli import _parser, main
from router_core.config import load
from router_core.reference_engine import running_engine
from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import ScriptedWorker, exchange_once
from router_core.testing.router import RunningRouter, running_router

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page for part in ("tutorial", "how-to", "explanation") for page in (DOCS / part).glob("*.md"))
PAGES += [DOCS / "reference" / "plugins-toml.md"]
ADDRESS = "http://127.0.0.1:8000"
PROFILES = {"sticky": {"enable": ["session_affinity"], "disable": ["retry"]}}
CAPTURING = {"your-first-rollout", "put-an-agent-behind-it"}
"""Pages whose router captures tokens."""
TOKENIZER = "ROUTER__PLUGINS__HF_TOKENIZER__PATH"
NOT_INSTALLED = "fair_share"
"""The tutorial's plugin: what its commands switch on is installed in test_new_plugin.py, not here."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"))


def commands(page: Path, program: str) -> Iterator[list[str]]:
    for block in blocks(page, "bash"):
        for line in block.splitlines():
            if line.startswith(f"{program} "):
                yield shlex.split(line, comments=True)[1:]


@asynccontextmanager
async def stage(page: Path, **tables: Any) -> AsyncIterator[RunningRouter]:
    """The router that a page speaks to: in front of a scripted worker, or capturing tokens of a real small model."""
    if page.stem not in CAPTURING:
        async with ScriptedWorker() as worker, running_router([worker.url], **tables) as router:
            yield router
        return
    plugins = {"hf_tokenizer": {"path": str(ASSETS)}}
    async with (
        running_engine() as engine,
        running_router([engine.url], enabled=["hf_tokenizer", "tito", "least_inflight"], plugins=plugins) as router,
    ):
        yield router


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_its_python_runs(page: Path, tmp_path: Path) -> None:
    file = tmp_path / f"page_{page.stem.replace('-', '_')}.py"
    async with stage(page) as router:
        file.write_text("\n\n".join(blocks(page, "python")).replace(ADDRESS, router.url), encoding="utf-8")
        names = runpy.run_path(str(file))
        tests = [found for name, found in names.items() if name.startswith("test_") or name == "main"]
        assert bool(tests) is bool(blocks(page, "python"))
        for test in tests:
            result = test()
            if inspect.isawaitable(result):
                await result


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_commands_are_right(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if page.stem in CAPTURING:
        monkeypatch.setenv(TOKENIZER, str(ASSETS))
    for block in blocks(page, "toml")[:1]:  # a page's commands are given where its plugins.toml is
        Path("plugins.toml").write_text(block, encoding="utf-8")
    for arguments in commands(page, "router-core"):
        if NOT_INSTALLED in " ".join(arguments) and arguments[0] != "new-plugin":
            continue
        if arguments[0] in ("demo", "engine"):
            _parser().parse_args(arguments)  # what they do is tried in tests of their own
            continue
        arguments = ["check" if argument == "serve" else argument for argument in arguments]
        assert main(arguments) == 0, arguments


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_its_requests_are_answered(page: Path) -> None:
    async with stage(page, enabled=["health", "retry", "least_inflight"], profiles=PROFILES) as router:
        for arguments in commands(page, "curl"):
            method, headers, body, target = _request(arguments)
            answer = await exchange_once(router.port, method, target, headers, body)
            assert answer.status < 300, (arguments, answer.body)


def _request(arguments: list[str]) -> tuple[str, list[tuple[str, str]], bytes, str]:
    """What curl would send: method, headers, body and target."""
    method, headers, body, target, rest = None, [], b"", "", iter(arguments)
    for argument in rest:
        if argument == "-X":
            method = next(rest)
        elif argument == "-H":
            name, _, value = next(rest).partition(": ")
            headers.append((name, value))
        elif argument == "-d":
            body = next(rest).encode()
        elif argument not in ("-i", "-N"):
            target = argument.removeprefix(ADDRESS)
    return method or ("POST" if body else "GET"), headers, body, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_configuration_is_valid(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "toml"):
        file = tmp_path / "plugins.toml"
        file.write_text(block, encoding="utf-8")
        Application(load(file=str(file), environment={TOKENIZER: str(ASSETS)} if page.stem in CAPTURING else {}))
