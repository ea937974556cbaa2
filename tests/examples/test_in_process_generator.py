from __future__ import annotations

import asyncio
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "in_process_generator" / "generator.py"


async def test_the_generator_prints_a_row_for_each_of_its_agents() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    lines = said.decode().splitlines()
    rows = [line.split() for line in lines if line.startswith("rollout-")]
    assert [row[0] for row in rows] == [f"rollout-{index}_{number}" for index in range(3) for number in range(2)]
    assert {(row[3], row[4], row[7]) for row in rows} == {("3", "2", "True")}
    assert "prompt_token_ids 6" in lines[-1]
