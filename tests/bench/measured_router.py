"""A router in a process of its own, whose CPU time and memory can be read from outside (Linux)."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from router_core.testing import exchange_once


class MeasuredRouter:
    """``cpu_ms`` is the CPU time it has used so far."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    @property
    def cpu_ms(self) -> float:
        return time.clock_gettime(~self.pid << 3 | 2) * 1000  # the clock of another process, see clock_getcpuclockid


@asynccontextmanager
async def measured_router(
    worker: str, enabled: Sequence[str], settings: Sequence[str] = ()
) -> AsyncIterator[MeasuredRouter]:
    """Serves in front of ``worker`` until the block ends; returns once the router is ready."""
    with tempfile.TemporaryDirectory() as directory:
        ready, config = Path(directory) / "ready.json", Path(directory) / "plugins.toml"
        config.write_text(f"enabled = {json.dumps(list(enabled))}\n")
        flags = [part for setting in settings for part in ("--set", setting)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "router_core", "serve", "--config", str(config), "--port", "0"),
            *("--worker", worker, "--ready-file", str(ready), "--log-level", "error", *flags),
        )
        try:
            async with asyncio.timeout(60):
                while not ready.exists():  # noqa: ASYNC110  # another process has no event to await
                    await asyncio.sleep(0.05)
                port = json.loads(ready.read_text())["port"]
                while (await exchange_once(port, "GET", "/readiness")).status != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            yield MeasuredRouter(process.pid, port)
        finally:
            process.terminate()
            await process.wait()
