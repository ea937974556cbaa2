"""What several processes refuse to start with, and what nobody outside can say to one of them."""

from __future__ import annotations

import asyncio
import marshal
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from processes_kit import children_of

from router_core.app import Application
from router_core.config import load
from router_core.errors import ConfigError
from router_core.in_process import serving
from router_core.processes.frames import REQUEST, frame
from router_core.testing import exchange_once

Command = Callable[..., Awaitable[tuple[int, str, str]]]

MINE = """
from router_core import hookimpl


class Silent:
    @hookimpl
    def identify(self, exchange):
        return None


class Fails:
    several_processes = True

    @hookimpl
    async def startup(self):
        raise ValueError("no such model")


class Middleware:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)
"""


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("mine:Silent", "plugin 'silent' does not work in several processes: its class does not say"),
        ("mine:Fails", "plugin 'fails' did not start: ValueError('no such model')"),
        ("mine:Middleware", "middleware 'mine:Middleware' does not say several_processes = True"),
    ],
)
async def test_what_does_not_work_in_several_processes_is_one_clear_line(
    command: Command, tmp_path: Path, path: str, told: str
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    status, _, said = await command("serve", "--processes", "2", "--port", "0", "--middleware-paths", path)
    assert (status, said.count("\n")) == (2, 1), said
    assert told in said


@pytest.mark.parametrize("plugin", ["prompt_group", "radix_cache", "routed_experts"])
def test_plugins_whose_state_is_not_a_sessions_are_refused(plugin: str) -> None:
    config = load({"router.processes": 2}, enable=[plugin], file="", environment={})
    with pytest.raises(ConfigError, match=f"plugin '{plugin}' does not work in several processes"):
        Application(config)


def test_a_setting_or_a_profile_may_be_what_does_not_work() -> None:
    by_group = ["plugins.session_affinity.key=group"]
    with pytest.raises(ConfigError, match="'session_affinity' does not work in several processes as it is set"):
        Application(load({"router.processes": 2}, settings=by_group, file="", environment={}))
    Application(load({"router.processes": 1}, settings=by_group, file="", environment={}))
    by_hash = [*by_group, "plugins.session_affinity.mode=hash"]
    Application(load({"router.processes": 2}, settings=by_hash, file="", environment={}))
    by_profile = ["profiles.p.plugins.session_affinity.key=group"]
    with pytest.raises(ConfigError, match="'session_affinity' does not work"):
        Application(load({"router.processes": 2}, settings=by_profile, file="", environment={}))


async def test_a_router_inside_a_program_is_one_process() -> None:
    with pytest.raises(ConfigError, match="one process"):
        async with serving({"router": {"processes": 2}}):
            pass


async def test_a_port_that_another_router_shares_among_its_own_is_taken(start_two: Any, command: Command) -> None:
    router = await start_two()
    status, _, told = await command("serve", "--processes", "2", "--port", str(router.port))
    assert (status, "Address already in use" in told) == (2, True)


async def test_who_stops_leaves_nothing_open(start_two: Any) -> None:
    router = await start_two(env={"PYTHONWARNINGS": "always::ResourceWarning"})
    router.signal(signal.SIGTERM)
    status, told = await router.wait()
    assert (status, [line for line in told.splitlines() if "ResourceWarning" in line]) == (0, [])


async def test_nobody_outside_can_pass_for_another_process(start_two: Any) -> None:
    router = await start_two("--set", "enabled=[]")
    address = _address_of(children_of(router.pid)[0])
    forged = frame(REQUEST, marshal.dumps(({"type": "http"}, b"", True)))
    for said in (b"0" * 64 + forged, forged + b" " * 64, b"GET / HTTP/1.1\r\n\r\n" + b" " * 64):
        reader, writer = await asyncio.open_unix_connection(address)
        writer.write(said)
        async with asyncio.timeout(30):
            assert await reader.read() == b""
        writer.close()
    assert (await exchange_once(router.port, "GET", "/health")).status == 200


def _address_of(pid: int) -> str:
    """Where a process takes the requests that others hand over."""
    links = [fd for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()]
    inodes = {str(fd.readlink()) for fd in links}
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    named = [row for row in rows if len(row) > 7 and row[7].startswith("@router-core")]
    return next("\0" + row[7][1:] for row in named if f"socket:[{row[6]}]" in inodes)


async def test_an_address_for_operators_stays_apart_in_every_process(start_two: Any) -> None:
    router = await start_two("--set", "admin_port=0", "--set", "admin_token=t0p")
    port = int(router.ready["admin_url"].rpartition(":")[2])
    for _ in range(10):
        assert (await exchange_once(router.port, "GET", "/workers")).status == 404
        assert (await exchange_once(port, "GET", "/workers")).status == 401
        allowed = await exchange_once(port, "GET", "/workers", headers=[("authorization", "Bearer t0p")])
        assert allowed.status == 200
        opened = await exchange_once(
            port, target="/sessions", json={"session_id": "s"}, headers=[("authorization", "Bearer t0p")]
        )
        if opened.status == 200:
            assert opened.json()["base_url"] == f"http://127.0.0.1:{router.port}/sessions/s/v1"
        assert (await exchange_once(port, "DELETE", "/sessions/s")).status == 401
        await asyncio.sleep(0)


@pytest.mark.skipif(sys.platform != "linux", reason="the table of open files is Linux's")
async def test_each_has_room_for_open_files_before_they_are_opened(start_two: Any) -> None:
    if 0 < resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 8192:
        pytest.skip("the hard limit here is lower than what is tried")
    router = await start_two("--worker", "http://127.0.0.1:1")
    assert all(_file_table_size(pid) >= 8192 for pid in children_of(router.pid))


def _file_table_size(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("FDSize:")[2].split()[0])


async def test_what_runs_is_what_is_installed_and_not_a_checkout_beside_it(start_two: Any, tmp_path: Path) -> None:
    (tmp_path / "router_core").mkdir()
    (tmp_path / "router_core" / "__init__.py").write_text("raise RuntimeError('this one is not installed')")
    router = await start_two("--worker", "http://127.0.0.1:1")
    assert len(children_of(router.pid)) == 2
