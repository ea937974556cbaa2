"""examples/real_engine, with reference engines in the place of real ones: the script itself works, for both wires."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from router_core.reference_engine import running_engine

SCRIPT = Path(__file__).parents[2] / "examples" / "real_engine" / "compare.py"


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
async def test_answers_through_the_router_equal_direct_ones(kind: str, tmp_path: Path) -> None:
    async with running_engine(dialect=kind) as one, running_engine(dialect=kind) as other:
        flags = ["--kind", kind, "--model", "reference", "--worker", one.url, "--worker", other.url]
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPT), *flags, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
        )
        said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    assert said.count(" equal ") == 8
    assert said.splitlines()[-1] == "all equal"
