"""How much memory a running program grew by, at its peak."""

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

POLL_INTERVAL_S = 0.005


class MemoryGrowth:
    """``peak_bytes``: the most that was resident above what was at the start; 0 until the block ends."""

    def __init__(self) -> None:
        self.peak_bytes = 0

    @property
    def peak_mib(self) -> float:
        return self.peak_bytes / (1 << 20)


@contextlib.contextmanager
def peak_memory_growth(pid: int) -> Iterator[MemoryGrowth]:
    """Watch a program while the block runs: ``with peak_memory_growth(pid) as growth``, then ``growth.peak_mib``.

    On Linux the kernel keeps the peak (VmHWM, begun anew through clear_refs) and none is missed. Elsewhere, and where
    clear_refs may not be written, the resident set is looked at every few milliseconds.
    """
    if _resident_kib(pid) == 0:
        raise ProcessLookupError(f"no program runs with the process id {pid}")
    growth = MemoryGrowth()
    status = Path(f"/proc/{pid}/status")
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        start = _read_kib(status, "VmRSS")
    except (OSError, LookupError):
        with polled_peak(pid, growth):
            yield growth
        return
    yield growth
    growth.peak_bytes = max(0, _read_kib(status, "VmHWM") - start) * 1024


def _read_kib(status: Path, name: str) -> int:
    for line in status.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise LookupError(f"{status} has no {name}: the program has ended")


def _resident_kib(pid: int) -> int:
    """Its resident set by /proc, else by ps; 0 once it has ended."""
    try:
        return _read_kib(Path(f"/proc/{pid}/status"), "VmRSS")
    except LookupError:
        return 0
    except OSError:
        told = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return int(told.stdout.strip() or 0)


@contextlib.contextmanager
def polled_peak(pid: int, growth: MemoryGrowth) -> Iterator[None]:
    """The fallback: looks at the resident set from a thread, so that a short peak may be missed."""
    start = peak = _resident_kib(pid)
    is_over = threading.Event()

    def poll() -> None:
        nonlocal peak
        while not is_over.wait(POLL_INTERVAL_S):
            peak = max(peak, _resident_kib(pid))

    thread = threading.Thread(target=poll, name="peak memory")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        growth.peak_bytes = (max(peak, _resident_kib(pid)) - start) * 1024
