"""The processes of the demo: started with a ready file, and ended whatever happens."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from router_core.demo.failure import DemoFailure

START_S = 60.0
STOP_S = 5.0
POLL_S = 0.02


class Process:
    """One command that serves: an engine or the router, ``python -m module``. ``url`` is known once it is ready."""

    def __init__(self, name: str, directory: Path, *arguments: str, port: int = 0, module: str = "router_core") -> None:
        self.name = name
        self.url = ""
        self._module = module
        self._port = port
        self._arguments = arguments
        self._ready_file = directory / f"{name}.ready"
        self._log = directory / f"{name}.log"
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._running.pid if self._running else 0

    def start(self, *more_arguments: str) -> None:
        """Starts it; without a port of its own on a free one, and on the same one again later."""
        self._ready_file.unlink(missing_ok=True)
        # -P: a checkout in the working directory is not what is installed, and may be of another build
        command = [sys.executable, "-P", "-m", self._module, *self._arguments, *more_arguments]
        command += ["--port", str(self._port), "--ready-file", str(self._ready_file)]
        environment = {key: value for key, value in os.environ.items() if not key.upper().startswith("ROUTER__")}
        with self._log.open("wb") as log:
            self._running = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    async def ready(self) -> None:
        """Waits until its port is open. Raises DemoFailure when it ends before that or takes too long."""
        deadline = time.monotonic() + START_S
        while not self._ready_file.exists():
            self.check()
            if time.monotonic() > deadline:
                raise DemoFailure(f"{self.name} does not serve after {START_S:g} s")
            await asyncio.sleep(POLL_S)
        told = json.loads(self._ready_file.read_text(encoding="utf-8"))
        self.url, self._port = told["url"], told["port"]

    def check(self) -> None:
        """Raises DemoFailure, with its last words, when it has ended by itself."""
        if self._running is not None and (status := self._running.poll()) is not None:
            words = self._log.read_text(encoding="utf-8", errors="replace").strip()
            raise DemoFailure(f"{self.name} ended with status {status}: {words[-2000:] or 'it said nothing'}")

    def kill(self) -> None:
        """Ends it at once, as a crash would."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()

    def terminate(self) -> None:
        """Asks it to end."""
        if self._running is not None:
            self._running.terminate()

    def wait(self) -> None:
        """Waits some seconds for its end."""
        if self._running is not None:
            try:
                self._running.wait(STOP_S)
            except subprocess.TimeoutExpired:
                print(f"{self.name} (pid {self.pid}) does not end and is killed", file=sys.stderr)


def stop_all(processes: Sequence[Process]) -> None:
    """Ends every process: asks all at the same time, and kills what is left, also when it is interrupted itself."""
    try:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
    finally:
        for process in processes:
            process.kill()
