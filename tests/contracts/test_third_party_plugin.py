"""examples/third_party_plugin: a distribution that knows only public names, installed by pip, changes routing."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router_core.testing import ScriptedWorker, exchange_once

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_plugin"
READY_S = 20


@pytest.fixture(scope="module")
def stranger(environment: Callable[..., Any]) -> Any:
    """An environment with the router and the plugin."""
    return environment(EXAMPLE)


@asynccontextmanager
async def serving(stranger: Any, *flags: str) -> AsyncIterator[int]:
    """The port of a router that this environment's command serves."""
    ready_file = stranger.directory / "ready.json"
    ready_file.unlink(missing_ok=True)
    command = [stranger.python, "-m", "router_core", "serve", "--port", "0", "--ready-file", ready_file, *flags]
    process = await asyncio.create_subprocess_exec(*command, cwd=stranger.directory, stderr=subprocess.PIPE)
    try:
        async with asyncio.timeout(READY_S):
            while not ready_file.exists():
                assert process.returncode is None, "the router did not start"
                await asyncio.sleep(0.02)
        yield json.loads(ready_file.read_text(encoding="utf-8"))["port"]
    finally:
        process.terminate()
        await process.communicate()


def test_it_has_fewer_than_thirty_lines() -> None:
    lines = (EXAMPLE / "router_cost_aware" / "plugin.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 30


def test_it_is_listed_with_its_own_distribution_and_off(stranger: Any) -> None:
    listed = stranger.run("-m", "router_core", "plugins").splitlines()
    row = next(line for line in listed if " cost_aware " in line)
    assert row.split()[:5] == ["-", "cost_aware", "off", "0.1.0", "router-cost-aware"]


async def test_enabled_it_changes_where_requests_go(stranger: Any) -> None:
    async with (
        ScriptedWorker() as dear,
        ScriptedWorker() as cheap,
        serving(stranger, "--enable", "cost_aware") as port,
    ):
        for worker, price in ((dear, "4.0"), (cheap, "1.5")):
            body = {"url": worker.url, "labels": {"usd_per_hour": price}}
            assert (await exchange_once(port, "POST", "/workers", json=body)).status == 202
        served = []
        for headers in ([], [("x-router-plugins", "-cost_aware")]):
            before = len(dear.requests), len(cheap.requests)
            for _ in range(4):
                assert (await exchange_once(port, headers=headers, json={"text": "hi"})).status == 200
            served.append((len(dear.requests) - before[0], len(cheap.requests) - before[1]))
    assert served == [(0, 4), (2, 2)]


def test_its_own_tests_pass(stranger: Any, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE / "tests", tmp_path / "tests")
    shutil.copy(EXAMPLE / "pyproject.toml", tmp_path)
    assert "4 passed" in stranger.run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path))
