"""A process that does not answer any more is noticed, killed and replaced, and one that is only busy is left alone."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from processes_kit import Connect, children_of, ids_of, is_alive, until

from router_core.testing import NoAnswerError, ScriptedWorker, exchange_once

ASK = {"text": "hi"}

MINE = """
import asyncio
import os
import time

from router_core import hookimpl


class Blocks:
    several_processes = True

    @hookimpl
    def identify(self, exchange):
        for_s = exchange.request.headers.get("x-block-s")
        if for_s is not None:
            open("blocks", "w").write(str(os.getpid()))
            time.sleep(float(for_s))
        return None


class StartsSlowly:
    several_processes = True

    @hookimpl
    async def startup(self):
        time.sleep(2)


class NeverStarts:
    several_processes = True

    @hookimpl
    async def startup(self):
        await asyncio.Event().wait()


class HangsOnce:
    several_processes = True

    @hookimpl
    async def startup(self):
        try:
            os.close(os.open("hung", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        time.sleep(3600)
"""
QUICK = ("--set", "process_timeout_s=1")


def _reload_to(config: Path, *classes: str) -> None:
    paths = ", ".join(f'"mine:{name}"' for name in classes)
    config.write_text(f"enabled = []\n[router]\nmiddleware_paths = [{paths}]\n")


async def test_a_stopped_process_is_killed_and_replaced_and_what_it_had_is_said(
    start_two: Any, connect: Connect
) -> None:
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url, *QUICK)
        lost, kept = ids_of(0, 2), ids_of(1, 2)
        for session_id in (*lost, *kept):
            assert (await exchange_once(router.port, target="/sessions", json={"session_id": session_id})).status == 200
        hung, other = children_of(router.pid)
        os.kill(hung, signal.SIGSTOP)
        await until(lambda: hung not in children_of(router.pid) and len(children_of(router.pid)) == 2)
        clients = await connect(router.port)
        for client in clients:  # those of the lost process wait for the new one
            assert (await client.request("GET", "/health", timeout_s=30)).status == 200
        for client in clients:
            for session_id in lost:
                gone = await client.request("GET", f"/sessions/{session_id}", timeout_s=30)
                assert (gone.status, gone.get("x-router-error")) == (410, "session_lost")
                assert "had not answered for" in gone.json()["error"]["message"]
            for session_id in kept:
                assert (await client.request(target=f"/sessions/{session_id}/generate", json=ASK)).status == 200
        assert other in children_of(router.pid)
        router.signal(signal.SIGTERM)
        status, told = await router.wait()
        assert status == 0
        assert "process 0 hangs, it had not answered for" in told
        said = next(line for line in told.splitlines() if "lost:" in line)
        assert f"process 0 (pid {hung}) ended by signal 9: it had not answered for" in said
        assert f"2 open sessions ({', '.join(sorted(lost))})" in said


async def test_a_loop_that_a_plugin_blocks_for_good_is_a_process_that_hangs(start_two: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url, "--middleware-paths", "mine:Blocks", *QUICK)
        try:
            answer = await exchange_once(router.port, json=ASK, headers=[("x-block-s", "3600")], timeout_s=60)
        except (NoAnswerError, ConnectionError):
            answer = None
        assert answer is None
        hung = int((tmp_path / "blocks").read_text())
        await until(lambda: hung not in children_of(router.pid) and len(children_of(router.pid)) == 2)
        for _ in range(8):
            assert (await exchange_once(router.port, json=ASK, timeout_s=30)).status == 200


async def test_a_loop_that_is_blocked_for_a_while_is_only_busy(start_two: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    async with ScriptedWorker() as worker:
        blocks = ("--middleware-paths", "mine:Blocks", "--set", "process_timeout_s=10")
        router = await start_two("--worker", worker.url, *blocks)
        pids = children_of(router.pid)
        answer = await exchange_once(router.port, json=ASK, headers=[("x-block-s", "2")], timeout_s=60)
        assert answer.status == 200
        assert children_of(router.pid) == pids


async def test_a_supervisor_that_stood_still_itself_blames_nobody(start_two: Any) -> None:
    router = await start_two("--set", "process_timeout_s=0.5")
    pids = children_of(router.pid)
    router.signal(signal.SIGSTOP)
    await asyncio.sleep(2)  # no event: it is stopped
    router.signal(signal.SIGCONT)
    await asyncio.sleep(1)  # it would have killed them by now
    assert children_of(router.pid) == pids
    router.signal(signal.SIGTERM)
    _, told = await router.wait()
    assert "hangs" not in told


async def test_a_process_that_hangs_ends_with_its_supervisor_too(start_two: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    async with ScriptedWorker() as worker:
        never = ("--set", "process_timeout_s=0", "--set", "shutdown_grace_s=0")
        router = await start_two("--worker", worker.url, "--middleware-paths", "mine:Blocks", *never)
        pids = children_of(router.pid)
        asked = asyncio.create_task(exchange_once(router.port, json=ASK, headers=[("x-block-s", "3600")], timeout_s=60))
        await until(lambda: (tmp_path / "blocks").exists())
        os.kill(router.pid, signal.SIGKILL)
        await until(lambda: not any(is_alive(pid) for pid in pids))
        assert (await router.wait())[0] == -signal.SIGKILL  # reads its pipes to their end
        assert isinstance((await asyncio.gather(asked, return_exceptions=True))[0], NoAnswerError | ConnectionError)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration to begin with, beside the plugins that others name."""
    (tmp_path / "mine.py").write_text(MINE)
    config = tmp_path / "plugins.toml"
    _reload_to(config)
    return config


async def test_a_startup_that_never_ends_is_no_reload_and_the_next_one_is(
    start_two: Any, connect: Connect, config: Path
) -> None:
    router = await start_two("--config", str(config), "--set", "reload_timeout_s=1")
    pids, clients = children_of(router.pid), await connect(router.port)
    _reload_to(config, "NeverStarts")
    refused = await clients[0].request(target="/admin/reload", timeout_s=30)
    assert (refused.status, refused.get("x-router-error")) == (400, "bad_configuration")
    assert "plugin 'never_starts' did not start within 1 s" in refused.json()["error"]["message"]
    _reload_to(config, "Blocks")
    assert (await clients[1].request(target="/admin/reload", timeout_s=30)).json()["enabled"] == ["blocks"]
    assert children_of(router.pid) == pids


async def test_plugins_that_take_long_to_start_at_a_reload_are_no_hang(
    start_two: Any, connect: Connect, config: Path
) -> None:
    router = await start_two("--config", str(config), "--set", "process_timeout_s=0.5")
    pids, clients = children_of(router.pid), await connect(router.port, 1)
    _reload_to(config, "StartsSlowly")
    answer = await clients[0].request(target="/admin/reload", timeout_s=30)
    assert answer.json()["enabled"] == ["starts_slowly"]
    assert children_of(router.pid) == pids


async def test_a_process_that_hangs_at_a_reload_is_replaced_by_one_of_the_new_configuration(
    start_two: Any, connect: Connect, config: Path
) -> None:
    router = await start_two("--config", str(config), "--set", "reload_timeout_s=2", *QUICK)
    pids = children_of(router.pid)
    _reload_to(config, "HangsOnce")
    router.signal(signal.SIGHUP)
    await until(lambda: children_of(router.pid) != pids and len(children_of(router.pid)) == 2)
    for client in await connect(router.port):
        name = ""
        async with asyncio.timeout(30):
            while name != "hangs_once":
                name = (await client.request("GET", "/plugins", timeout_s=30)).json()["plugins"][0]["name"]
    _reload_to(config, "Blocks")
    told = await exchange_once(router.port, target="/admin/reload", timeout_s=30)
    assert told.json()["enabled"] == ["blocks"]
