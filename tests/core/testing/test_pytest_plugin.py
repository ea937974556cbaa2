"""The fixtures work for a stranger, in a test run of its own."""

import subprocess
import sys
from pathlib import Path

import router_core

CONFTEST = 'pytest_plugins = ["router_core.testing.pytest_plugin"]\n'
TESTS = """
import pytest
from router_core.testing import exchange_once

pytestmark = pytest.mark.asyncio

async def test_one(scripted_worker):
    assert (await exchange_once(scripted_worker.port, json={"text": "hi"})).status == 200

async def test_many(scripted_workers):
    first, second, third = await scripted_workers(3, "vllm")
    assert len({first.port, second.port, third.port}) == 3
    assert first.engine.name == "vllm"

async def test_a_wrong_handler_fails_the_test(scripted_worker):
    async def handler(request, connection):
        raise AssertionError("seen")
    scripted_worker.handler = handler
    with pytest.raises(ConnectionError):
        await exchange_once(scripted_worker.port)
"""


def test_the_fixtures_start_and_stop_workers_in_a_run_without_settings(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_theirs.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function\n"
    )
    root = Path(router_core.__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ran = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False
    )
    assert "3 passed, 1 error" in ran.stdout, ran.stdout + ran.stderr
    assert "ERROR test_theirs.py::test_a_wrong_handler_fails_the_test - AssertionError: seen" in ran.stdout


def test_the_example_in_the_docstring_runs(tmp_path: Path) -> None:
    import router_core.testing

    _, _, example = (router_core.testing.__doc__ or "").partition("::\n\n")
    lines = [line.removeprefix("    ") for line in example.splitlines() if line.startswith("    ")]
    text = "import pytest\nfrom router_core.testing import *\n\n@pytest.mark.asyncio\n" + "\n".join(lines) + "\n"
    (tmp_path / "test_example.py").write_text(text)
    root = Path(router_core.__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ran = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False
    )
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr
