from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "slime_text_flow"


async def test_the_text_flow_gives_every_sample_its_tokens() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE / "run.py"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    lines = out.decode().splitlines()
    samples = [re.match(r"sample \d: (\d+) tokens, (\d+) of the response, (\d+) sampled", line) for line in lines[:4]]
    assert all(samples)
    assert all(int(found[1]) > int(found[2]) > int(found[3]) > 0 for found in samples if found)
    assert re.match(r"cache: 8 trajectories, \d+ tokens, [1-9]\d* reused", lines[4])
