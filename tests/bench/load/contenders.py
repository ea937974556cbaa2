"""Who is compared: the worker itself, this router's configurations, and any command line as a peer."""

from __future__ import annotations

import http.client
import shlex
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.bench.load import routers
from tests.bench.load.bodies import Script, request_body
from tests.bench.load.processes import Program

ROOT = Path(__file__).parents[3]
DIRECT = "direct"
START_S = 60.0
SETTLE_S = 0.3


class StartError(Exception):
    """A contender did not serve; says what it logged."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def fill(text: str, values: Mapping[str, str], workers: Sequence[str]) -> Iterator[str]:
    """A text with its placeholders filled in; once for each worker where it names one."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    if not any(name in text for name in ("{worker}", "{address}", "{number}")):
        yield text
        return
    for number, url in enumerate(workers):
        address = url.removeprefix("http://")
        yield text.replace("{worker}", url).replace("{address}", address).replace("{number}", str(number))


def peer_command(template: str, directory: Path, port: int, workers: Sequence[str]) -> list[str]:
    """The arguments of a peer's command line. ``@FILE`` is that file, filled in line by line, in ``directory``."""
    values = {
        "port": str(port),
        "other_port": str(free_port()),
        "directory": str(directory),
        "workers_csv": ",".join(workers),
    }
    command: list[str] = []
    for argument in shlex.split(template):
        if argument == "{workers}":
            command += workers
        elif argument.startswith("@"):
            source = ROOT / argument[1:]
            lines = source.read_text(encoding="utf-8").splitlines()
            target = directory / source.name
            target.write_text(
                "".join(f"{filled}\n" for line in lines for filled in fill(line, values, workers)), encoding="utf-8"
            )
            command.append(str(target))
        else:
            command += fill(argument, values, workers)
    return command


class Contender:
    """One that is measured; ``program`` is None where it is the worker itself."""

    def __init__(
        self,
        name: str,
        workers: Sequence[str],
        cpus: set[int],
        *,
        peer: str | None = None,
        settings: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.program: Program | None = None
        self.resident_kib: int | None = None
        """Before its first run: what it keeps of one is not to look like nothing in the next."""
        self.port = int(workers[0].rpartition(":")[2])
        self._directory: Path | None = None
        if name == DIRECT:
            return
        self.port = free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="router-bench-"))
        if peer is None:
            command = routers.command(name, self._directory, self.port, workers, settings)
        else:
            command = peer_command(peer, self._directory, self.port, workers)
        self._log = self._directory / "log"
        try:
            with self._log.open("w") as log:
                self.program = Program(command, cpus, cwd=ROOT, env={"HF_HUB_OFFLINE": "1"}, log=log)
        except OSError as error:
            self.stop()
            raise StartError(f"{name}: {error}") from None

    def wait_ready(self) -> None:
        """Until requests pass. Raises StartError."""
        if self.program is None:
            return
        end = time.monotonic() + START_S
        while not self._answers():
            if self.program.process.poll() is not None or time.monotonic() > end:
                told = self._log.read_text(errors="replace")[-600:]
                raise StartError(f"{self.name} does not serve: {told.strip() or 'it logged nothing'}")
            time.sleep(0.1)
        time.sleep(SETTLE_S)  # the workers that it has not found yet

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("POST", "/generate", request_body(Script()), {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            return answer.status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        if self.program is not None:
            self.program.stop()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
