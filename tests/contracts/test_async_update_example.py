"""The example of asynchronous training, run as its users run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "async_update" / "run.py"


def test_every_token_of_its_rows_carries_a_version(tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    flags = ["--updates", "2", "--rollouts", "4", "--tokens", "60", "--interval-s", "0.4", "--experts"]
    ended = subprocess.run(
        [sys.executable, str(EXAMPLE), *flags, "--output", str(output)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "0 errors seen by clients" in ended.stdout
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert any(len(row["segments"] or ()) > 1 for row in rows)
    for row in rows:
        sampled = [version for version, mask in zip(row["weight_versions"], row["loss_mask"], strict=True) if mask]
        assert len(sampled) == 60
        assert set(sampled) <= {"0", "1", "2"}
