"""A reload: a new generation serves what begins from then on, the old one what it has begun; a wrong one is refused."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from router_core import Answer, PluginSettings, Router, hookimpl, serving
from router_core.testing import ScriptedWorker, exchange_once
from router_core.testing.router import _importable

ASK: dict[str, Any] = {"text": "hi"}
IN_FLIGHT = 256


class Marks:
    """Writes its own mark on everything an exchange passes."""

    lives: list[str]

    class Settings(PluginSettings):
        mark: str = "one"
        """What it writes."""

    def __init__(self, settings: Settings) -> None:
        self.mark = settings.mark
        self.lives = type(self).lives

    @hookimpl
    async def startup(self, router: Router) -> None:
        if self.mark == "cannot":
            raise ValueError("no such thing")
        if self.mark == "exits":
            sys.exit("not today")
        if self.mark == "never":
            await asyncio.Event().wait()
        self.lives.append(f"{self.mark} starts with {len(router.worker_urls)} workers")
        router.spawn(self._until_cancelled(), name="marks")

    async def _until_cancelled(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.lives.append(f"{self.mark}'s task ends")

    @hookimpl
    async def shutdown(self) -> None:
        self.lives.append(f"{self.mark} stops")

    @hookimpl
    async def request_start(self, exchange) -> None:
        exchange.request.headers.add("x-mark", self.mark)

    @hookimpl
    async def attempt_start(self, attempt) -> None:
        attempt.request.headers.add("x-mark", self.mark)

    @hookimpl
    async def response_start(self, answer: Answer) -> None:
        answer.headers.add("x-mark", self.mark)

    @hookimpl
    def routes(self):
        async def show(request: Request) -> JSONResponse:
            return JSONResponse(self.mark)

        return [Route("/plugins/marks/mark", show, methods=["GET"])]


@pytest.fixture
def config() -> dict[str, Any]:
    """A configuration with the plugin; what is changed in it holds at the next reload."""
    cls = type("Marks", (Marks,), {"lives": []})
    path = _importable(cls)
    return {
        "enabled": [],
        "router": {"middleware_paths": [path]},
        "plugins": {"marks": {"mark": "one"}},
        "lives": cls.lives,
    }


def tables(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    return config, config.pop("lives")


async def reload(port: int) -> Any:
    return await exchange_once(port, "POST", "/admin/reload")


async def test_a_new_generation_serves_and_the_old_one_ends_what_it_began(config: dict[str, Any]) -> None:
    config, lives = tables(config)
    async with ScriptedWorker() as worker, serving(config) as router:
        await exchange_once(router.port, "POST", "/add_worker?url=" + worker.url)
        opened = await exchange_once(router.port, "POST", "/sessions", json={"session_id": "s1"})
        assert opened.status == 200
        words = worker.say("old", hold_after=0)
        old = asyncio.create_task(exchange_once(router.port, json=ASK))
        await worker.wait_until(lambda: worker.live == 1)
        config["plugins"] = {"marks": {"mark": "two"}}
        answer = await reload(router.port)
        assert (answer.status, answer.json()) == (200, {"generation": 2, "enabled": ["marks"], "needs_restart": []})
        new = await exchange_once(router.port, target="/sessions/s1/generate", json=ASK)
        assert [value for name, value in new.headers if name == b"x-mark"] == [b"two"]
        assert [v for n, v in worker.requests[-1].headers if n == b"x-mark"] == [b"two", b"two"]
        assert (await exchange_once(router.port, "GET", "/plugins/marks/mark")).json() == "two"
        assert lives == ["one starts with 0 workers", "two starts with 1 workers"]
        assert router.router.worker_urls == {worker.url: 1}
        words.release()
        assert [value for name, value in (await old).headers if name == b"x-mark"] == [b"one"]
        await _ended(router, 1)
        assert lives[2:] == ["one's task ends", "one stops"]
        assert router.router.worker_urls == {worker.url: 0}
    assert lives[4:] == ["two's task ends", "two stops"]


async def _ended(router: Any, left: int) -> None:
    async with asyncio.timeout(10):
        while len(router.application._generations) > left:  # noqa: ASYNC110  # nothing else says so
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"plugins": {"marks": {"no_such": 1}}}, "plugins.marks.no_such: unknown key"),
        ({"plugins": {"marks": {"mark": "cannot"}}}, "plugin 'marks' did not start: ValueError('no such thing')"),
        ({"plugins": {"marks": {"mark": "exits"}}}, "plugin 'marks' did not start: SystemExit('not today')"),
        ({"enabled": ["nobody"]}, "there is no plugin 'nobody'"),
        ({"router": {"prot": 1}}, "router.prot: unknown key"),
    ],
)
async def test_a_wrong_configuration_is_refused_and_the_old_one_serves_on(
    change: dict[str, Any], told: str, config: dict[str, Any]
) -> None:
    config, lives = tables(config)
    async with ScriptedWorker() as worker, serving(config) as router:
        await exchange_once(router.port, "POST", "/add_worker?url=" + worker.url)
        before = dict(config)
        config.update(change)
        refused = await reload(router.port)
        assert (refused.status, refused.json()["error"]["code"]) == (400, "bad_configuration")
        assert told in refused.json()["error"]["message"]
        assert (await exchange_once(router.port, json=ASK)).get("x-mark") == "one"
        assert "one stops" not in lives and len(router.application._generations) == 1
        config.update(before, plugins={"marks": {"mark": "three"}})
        assert (await reload(router.port)).status == 200
        assert (await exchange_once(router.port, json=ASK)).get("x-mark") == "three"


async def test_a_startup_that_never_ends_is_given_up_and_the_next_reload_is_taken(config: dict[str, Any]) -> None:
    config, lives = tables(config)
    config["router"]["reload_timeout_s"] = 0.2
    async with serving(config) as router:
        config["plugins"] = {"marks": {"mark": "never"}}
        refused = await reload(router.port)
        assert (refused.status, refused.get("x-router-error")) == (400, "bad_configuration")
        told = "plugin 'marks' did not start within 0.2 s (router.reload_timeout_s)"
        assert told in refused.json()["error"]["message"]
        assert (await exchange_once(router.port, "GET", "/plugins/marks/mark")).json() == "one"
        config["plugins"] = {"marks": {"mark": "two"}}
        assert (await reload(router.port)).status == 200
        assert (await exchange_once(router.port, "GET", "/plugins/marks/mark")).json() == "two"
    assert lives[0] == "one starts with 0 workers"


async def test_under_load_each_exchange_sees_exactly_one_generation(config: dict[str, Any]) -> None:
    config, _ = tables(config)
    async with ScriptedWorker() as worker, serving(config) as router:
        await exchange_once(router.port, "POST", "/add_worker?url=" + worker.url)
        done: list[tuple[str, ...]] = []

        async def generator() -> None:
            for _ in range(8):
                answer = await exchange_once(router.port, json=ASK)
                assert answer.status == 200
                done.append(tuple(value.decode() for name, value in answer.headers if name == b"x-mark"))

        running = [asyncio.create_task(generator()) for _ in range(IN_FLIGHT)]
        for number in range(2, 6):
            await worker.wait_until(lambda number=number: len(worker.requests) > number * IN_FLIGHT)
            config["plugins"] = {"marks": {"mark": f"m{number}"}}
            assert (await reload(router.port)).status == 200
        await asyncio.gather(*running)
        await _ended(router, 1)
        assert router.router.worker_urls == {worker.url: 0}
    assert all(len(marks) == 1 for marks in done) and len(done) == 8 * IN_FLIGHT
    got = Counter(tuple(v for n, v in request.headers if n == b"x-mark") for request in worker.requests)
    assert all(len(marks) == 2 and marks[0] == marks[1] for marks in got)
    assert len({mark for (mark,) in done}) >= 3


async def test_what_holds_for_the_process_is_named_and_left_alone(config: dict[str, Any]) -> None:
    config, _ = tables(config)
    async with serving(config) as router:
        config["router"] = {**config["router"], "max_workers": 7, "hook_timeout_s": 5}
        assert (await reload(router.port)).json()["needs_restart"] == ["router.max_workers"]


async def test_two_reloads_at_once_are_not_taken(config: dict[str, Any]) -> None:
    config, lives = tables(config)
    async with serving(config) as router:
        answers = await asyncio.gather(*(reload(router.port) for _ in range(4)))
        assert {answer.status for answer in answers} <= {200, 409}
        await _ended(router, 1)
    assert Counter(life.split()[1] for life in lives)["starts"] == Counter(life.split()[-1] for life in lives)["stops"]


async def test_a_generation_that_runs_out_is_ended_by_the_end_of_the_router(config: dict[str, Any]) -> None:
    config, lives = tables(config)
    config["router"]["shutdown_grace_s"] = 0.1
    async with ScriptedWorker() as worker:
        async with serving(config) as router:
            await exchange_once(router.port, "POST", "/add_worker?url=" + worker.url)
            worker.hold()
            held = asyncio.create_task(exchange_once(router.port, json=ASK))
            await worker.wait_until(lambda: worker.live == 1)
            config["plugins"] = {"marks": {"mark": "two"}}
            assert (await reload(router.port)).status == 200
        await asyncio.gather(held, return_exceptions=True)
    assert sorted(life for life in lives if life.endswith("stops")) == ["one stops", "two stops"]


async def test_a_signal_reloads_the_file(tmp_path: Path) -> None:
    import sys

    file, ready = tmp_path / "plugins.toml", tmp_path / "ready.json"
    file.write_text("enabled = []\n", encoding="utf-8")
    command = [sys.executable, "-m", "router_core", "serve", "--port", "0", "--ready-file", str(ready)]
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(40):
            while b"listens on" not in (line := await process.stderr.readline()):
                assert line, "the router did not start"
            while not ready.exists():  # noqa: ASYNC110  # a file has no event
                await asyncio.sleep(0.01)
            file.write_text('enabled = ["round_robin"]\n', encoding="utf-8")
            os.kill(process.pid, signal.SIGHUP)
            while b"generation 2 serves: round_robin" not in (line := await process.stderr.readline()):
                assert line, "the router has ended"
            file.write_text("enabled = [\n", encoding="utf-8")
            os.kill(process.pid, signal.SIGHUP)
            while b"the old one serves on: plugins.toml: cannot be read" not in (
                line := await process.stderr.readline()
            ):
                assert line, "the router has ended"
            process.terminate()
            await process.stderr.read()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
