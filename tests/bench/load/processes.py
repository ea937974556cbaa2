"""Programs of the benchmark: started on given cores, their CPU time and memory read from outside (Linux)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

STOP_S = 5.0


@contextlib.contextmanager
def on_cpus(cpus: set[int]) -> Iterator[None]:
    """What is started in the block runs on these cores alone."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


class Program:
    """A program and all that it starts; ends with ``stop``. What it writes goes to ``log``; None: where ours goes."""

    def __init__(
        self,
        command: Sequence[str],
        cpus: set[int],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        log: IO[Any] | int | None = subprocess.DEVNULL,
        stdin: int | None = None,
        stdout: int | None = None,
    ) -> None:
        with on_cpus(cpus):
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=log if stdout is None else stdout,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pids(self) -> list[int]:
        """It and its descendants."""
        found, left = [], [self.process.pid]
        while left:
            found.append(pid := left.pop())
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    left += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
        return found

    @property
    def cpu_s(self) -> float:
        """User and system time of all of it so far, to the nanosecond: each process's CPU clock."""
        total = 0.0
        for pid in self.pids:
            with contextlib.suppress(OSError):
                total += time.clock_gettime(~pid << 3 | 2)  # see clock_getcpuclockid(3)
        return total

    @property
    def rss_kib(self) -> int:
        return sum(_status_kib(pid, "VmRSS:") for pid in self.pids)

    @property
    def peak_rss_kib(self) -> int:
        """The most since `reset_peak`."""
        return sum(_status_kib(pid, "VmHWM:") for pid in self.pids)

    def reset_peak(self) -> None:
        for pid in self.pids:
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def stop(self) -> None:
        pids = self.pids
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, 9)
            self.process.wait(STOP_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def _status_kib(pid: int, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0


def machine_busy_s() -> float:
    """CPU seconds that the whole machine has spent working."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
