"""Peak memory is seen, also where the kernel's own peak may not be begun anew."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from router_core.testing import memory, peak_memory_growth

PROGRAM = """
import sys
for line in sys.stdin:
    block = b"x" * int(line)
    del block
    print("done", flush=True)
"""


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    """Takes so many bytes for a moment as each line says."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=-1, stdout=-1, text=True) as running:
        take(running, 1000)
        yield running
        assert running.stdin is not None
        running.stdin.close()


def take(running: subprocess.Popen[str], count: int) -> None:
    assert running.stdin is not None and running.stdout is not None
    running.stdin.write(f"{count}\n")
    running.stdin.flush()
    assert running.stdout.readline() == "done\n"


def test_a_peak_is_seen_after_it_has_gone(program: subprocess.Popen[str]) -> None:
    take(program, 200 << 20)
    with peak_memory_growth(program.pid) as little:
        take(program, 1 << 20)
    with peak_memory_growth(program.pid) as much:
        take(program, 100 << 20)
    assert little.peak_mib < 20
    assert 90 < much.peak_mib < 130


def test_polling_sees_a_peak_too(program: subprocess.Popen[str]) -> None:
    growth = memory.MemoryGrowth()
    with memory.polled_peak(program.pid, growth):
        for _ in range(6):
            take(program, 100 << 20)
    assert 50 < growth.peak_mib < 130


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ProcessLookupError, match="no program"), peak_memory_growth(2**22 + 1):
        pass
    assert not Path(f"/proc/{2**22 + 1}").exists()
