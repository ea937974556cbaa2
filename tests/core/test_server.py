"""A router process: the port, the ready file, and the stages of its end."""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router_core.testing import Faults, NoAnswerError, RawClient, ScriptedWorker, build_request, exchange_once, reply

Start = Callable[..., Awaitable[Any]]
Command = Callable[..., Awaitable[tuple[int, str, str]]]
ASK = {"text": "hi"}
NOTES = """
import asyncio
from pathlib import Path

from router_core import hookimpl


def note(text):
    with Path("notes.txt").open("a") as notes:
        notes.write(text + "\\n")


class Notes:
    @hookimpl
    async def startup(self):
        note("startup")

    @hookimpl
    def response_end(self, exchange, outcome):
        note(f"end {exchange.request.query.decode()} {outcome.kind} {outcome.code}")
        exchange.spawn(self.later(), name="later")

    async def later(self):
        await asyncio.sleep(0)
        note("later")

    @hookimpl
    async def shutdown(self):
        note("shutdown")


class StartsNot:
    @hookimpl
    async def startup(self):
        raise ValueError("no such model")


class TellsItsProcess:
    @hookimpl
    async def shutdown(self):
        import os
        import sys

        note(f"{sys.getswitchinterval():g} {os.environ['NUMPY_MADVISE_HUGEPAGE']}")


class HangsAtStart:
    @hookimpl
    async def startup(self):
        note("hangs")
        await asyncio.Event().wait()


class HangsAtEnd:
    @hookimpl
    async def shutdown(self):
        note("hangs at the end")
        await asyncio.Event().wait()


class Clings:
    @hookimpl
    async def around_upstream(self, exchange, call_next):
        note("begins to cling")
        while True:
            try:
                await asyncio.sleep(3600)
            except BaseException:
                note("clings")
"""


@pytest.fixture
def notes(tmp_path: Path) -> Callable[[], list[str]]:
    (tmp_path / "notes_plugins.py").write_text(NOTES)

    def read() -> list[str]:
        file = tmp_path / "notes.txt"
        return file.read_text().splitlines() if file.exists() else []

    return read


# ----------------------------------------------------------------------------------------------------------- the start
async def test_the_ready_file_names_the_port_that_serves(start_process: Start) -> None:
    router = await start_process()
    assert router.ready == {
        "host": "127.0.0.1",
        "port": router.port,
        "url": f"http://127.0.0.1:{router.port}",
        "pid": router.pid,
    }
    assert (await exchange_once(router.port, "GET", "/health")).status == 200


async def test_a_ready_file_of_an_earlier_run_is_taken_away_first(command: Command, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    ready.write_text('{"port": 1}')
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, _, _ = await command("serve", "--port", str(taken.getsockname()[1]), "--ready-file", str(ready))
    assert status == 2
    assert not ready.exists()


async def test_a_ready_file_that_cannot_be_written_is_one_clear_line(command: Command, tmp_path: Path) -> None:
    status, _, told = await command("serve", "--port", "0", "--ready-file", str(tmp_path / "no" / "such" / "place"))
    assert status == 2
    assert len(told.splitlines()) == 1
    assert "router.ready_file" in told


async def test_a_taken_port_is_one_clear_line(command: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, _, told = await command("serve", "--port", str(port))
    assert (status, told) == (
        2,
        f"router-core: --port: router.port: cannot listen on 127.0.0.1:{port}: Address already in use\n",
    )


async def test_a_host_that_cannot_be_listened_on_is_blamed_itself(command: Command) -> None:
    for host in ("192.0.2.1", "no-such-host.invalid"):
        status, _, told = await command("serve", "--port", "0", "--host", host)
        assert (status, told.count("\n")) == (2, 1)
        assert told.startswith(f"router-core: --host: router.host: cannot listen on {host}:0: ")


async def test_a_plugin_that_does_not_start_is_one_clear_line_and_the_others_are_stopped(
    command: Command, notes: Callable[[], list[str]]
) -> None:
    paths = ["notes_plugins:Notes", "notes_plugins:StartsNot"]
    status, _, told = await command("serve", "--port", "0", "--middleware-paths", *paths)
    assert (status, told) == (2, "router-core: plugin 'starts_not' did not start: ValueError('no such model')\n")
    assert notes() == ["startup", "shutdown"]


async def test_a_start_that_hangs_ends_by_a_signal(notes: Callable[[], list[str]], tmp_path: Path) -> None:
    arguments = ["serve", "--port", "0", "--middleware-paths", "notes_plugins:HangsAtStart"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router_core", *arguments, cwd=tmp_path, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(10):
        while notes() != ["hangs"]:  # noqa: ASYNC110  # another process tells it by a file
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, told = await process.communicate()
    assert process.returncode == 1
    assert len(told.splitlines()) == 1


async def test_threads_and_huge_pages_may_not_keep_the_loop_waiting(
    start_process: Start, notes: Callable[[], list[str]]
) -> None:
    router = await start_process("--middleware-paths", "notes_plugins:TellsItsProcess")
    os.kill(router.pid, signal.SIGTERM)
    async with asyncio.timeout(10):
        while not notes():  # noqa: ASYNC110  # another process tells it by a file
            await asyncio.sleep(0.01)
    assert notes() == ["0.001 0"]


def test_serving_imports_no_model_library() -> None:
    script = (
        "import sys; from router_core.config import load; from router_core.app import Application; "
        "import router_core.server, router_core.cli; Application(load(file='', environment={})); "
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('transformers', 'tokenizers', 'torch')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@asynccontextmanager
async def limited_router(
    tmp_path: Path, soft: int, hard: int | None, *arguments: str
) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    """The port of a router that was started with these limits of open files (None: the hard one that is)."""
    ready = tmp_path / "ready.json"
    limited = (
        "import resource as r, runpy; hard = r.getrlimit(r.RLIMIT_NOFILE)[1];"
        f"r.setrlimit(r.RLIMIT_NOFILE, ({soft}, {hard} or hard));"
        "runpy.run_module('router_core', run_name='__main__')"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", limited, "serve", "--port", "0", "--ready-file", str(ready), "--set", "enabled=[]"),
        *arguments,
        cwd=tmp_path,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(10):
            while not ready.exists():  # noqa: ASYNC110  # another process has no event to await
                await asyncio.sleep(0.01)
        yield json.loads(ready.read_text())["port"], process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.communicate()


async def test_as_many_files_as_the_system_allows_may_be_open(tmp_path: Path) -> None:
    """A soft limit of 256 would end at 128 requests."""
    async with (
        ScriptedWorker() as worker,
        limited_router(tmp_path, 256, None, "--worker", worker.url) as (port, _),
    ):
        worker.hold()
        asked = [asyncio.create_task(exchange_once(port, json=ASK, timeout_s=30)) for _ in range(200)]
        await worker.wait_for_requests(200, timeout_s=30)
        worker.release()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}


async def test_too_few_open_files_are_said_at_the_start(tmp_path: Path) -> None:
    """A hard limit is nothing that a router can raise; its operator must hear of it before requests fail."""
    async with limited_router(tmp_path, 256, 1024) as (_, process):
        process.terminate()
        told = (await process.communicate())[1].decode()
    (line,) = [line for line in told.splitlines() if "files" in line]
    assert "this process may open 1024 files, enough for about 448 requests" in line
    assert "WARNING" in line
    assert "router.max_held_requests = 10000" in line and "it takes 18320" in line


def file_table_size(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("FDSize:")[2].split()[0])


async def test_enough_open_files_are_nothing_to_speak_of(tmp_path: Path) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 9000:
        pytest.skip("the hard limit here is lower than what is tried")
    async with limited_router(tmp_path, 256, 9000, "--set", "router.max_held_requests=100") as (_, process):
        process.terminate()
        assert "files" not in (await process.communicate())[1].decode()


@pytest.mark.skipif(sys.platform != "linux", reason="the table of open files is Linux's")
async def test_there_is_room_for_open_files_before_they_are_opened(tmp_path: Path) -> None:
    async with limited_router(tmp_path, 256, 5000) as (_, process):
        assert process.pid is not None
        assert file_table_size(process.pid) >= 5000


# ------------------------------------------------------------------------------------------------------------- the end
async def test_sigterm_refuses_what_is_new_and_lets_finish_what_runs(
    start_process: Start, notes: Callable[[], list[str]]
) -> None:
    async with ScriptedWorker() as worker:
        router = await start_process("--worker", worker.url, "--middleware-paths", "notes_plugins:Notes")
        worker.handler = reply(b"{}")
        async with RawClient(router.port) as idle:
            await idle.request(target="/x?first")
            worker.fault(Faults.hold(go := asyncio.Event()))
            running = asyncio.create_task(exchange_once(router.port, target="/x?second"))
            await worker.wait_for_requests(2)
            router.signal(signal.SIGTERM)
            await idle.wait_closed()
        with pytest.raises(OSError, match="Connect"):
            await exchange_once(router.port, target="/x?third")
        go.set()
        answer = await running
        assert (answer.status, answer.clean) == (200, True)
        status, _ = await router.wait()
        assert status == 0
        assert notes() == ["startup", "end first ok None", "later", "end second ok None", "later", "shutdown"]


async def test_what_outlasts_the_grace_is_cut_visibly_and_its_end_is_told(
    start_process: Start, notes: Callable[[], list[str]]
) -> None:
    async with ScriptedWorker() as worker:
        router = await start_process(
            "--worker", worker.url, "--middleware-paths", "notes_plugins:Notes", "--set", "shutdown_grace_s=0.1"
        )
        worker.fault(Faults.stall(), when=lambda request: b"silent" in request.target)
        worker.fault(Faults.stall_amid(after_pieces=1), when=lambda request: b"stream" in request.target)
        async with RawClient(router.port) as stream:
            await stream.send(build_request(target="/generate?stream", json={**ASK, "stream": True}))
            cut = await stream.read_head()
            await stream.read_piece(cut)
            silent = asyncio.create_task(exchange_once(router.port, target="/generate?silent", json=ASK))
            await worker.wait_for_requests(2)
            router.signal(signal.SIGTERM)
            answer = await silent
            assert (answer.status, answer.get("x-router-error"), answer.get("retry-after")) == (
                503,
                "shutting_down",
                "1",
            )
            await stream.read_body(cut)
            assert cut.clean is False
        status, told = await router.wait()
        assert status == 0
        assert "Traceback" not in told
        lines = notes()
        assert sorted(lines[:5]) == sorted(
            ["startup", "end silent timed_out shutting_down", "end stream timed_out shutting_down", "later", "later"]
        )
        assert lines[5:] == ["shutdown"]
        await worker.wait_until_idle()


async def test_a_plugin_that_clings_to_its_request_or_hangs_at_the_end_does_not_keep_the_process(
    start_process: Start, notes: Callable[[], list[str]]
) -> None:
    async with ScriptedWorker() as worker:
        options = ["--worker", worker.url, "--set", "shutdown_grace_s=0", "--set", "hook_timeout_s=0.2"]
        plugins = ["notes_plugins:Notes", "notes_plugins:Clings", "notes_plugins:HangsAtEnd"]
        router = await start_process(*options, "--middleware-paths", *plugins)
        async with RawClient(router.port) as client:
            await client.send(build_request(json=ASK))
            async with asyncio.timeout(10):
                while "begins to cling" not in notes():  # noqa: ASYNC110  # the same
                    await asyncio.sleep(0.01)
            router.signal(signal.SIGTERM)
            with pytest.raises(NoAnswerError):
                await client.read_answer(timeout_s=30)
        status, told = await router.wait()
        assert status == 1
        assert "do not end" in told
        assert notes()[-2:] == ["hangs at the end", "shutdown"]


async def test_a_held_request_is_refused_at_once_when_the_router_stops(start_process: Start) -> None:
    router = await start_process("--set", "hold_for_starting_workers=true")
    router.signal(signal.SIGTERM)
    assert (await router.wait())[0] == 0


async def test_an_idle_process_ends_at_once(start_process: Start) -> None:
    router = await start_process()
    begun = time.monotonic()
    router.signal(signal.SIGTERM)
    status, told = await router.wait()
    assert (status, "Traceback" in told) == (0, False)
    assert time.monotonic() - begun < 5


async def test_an_interrupt_ends_like_sigterm_with_its_own_status(start_process: Start) -> None:
    router = await start_process()
    router.signal(signal.SIGINT)
    status, told = await router.wait()
    assert (status, "Traceback" in told) == (130, False)
