"""A router in a program that has a loop of its own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from router_core import ConfigError, Router, serving
from router_core.testing import ScriptedWorker, exchange_once


async def test_a_router_serves_in_the_loop_it_is_started_in_and_is_gone_after() -> None:
    async with ScriptedWorker() as worker:
        config = {"enabled": ["least_inflight"], "router": {"workers": [worker.url]}}
        async with serving(config) as running:
            assert isinstance(running.router, Router)
            assert running.url.endswith(f":{running.port}")
            assert (await exchange_once(running.port, json={"text": "hi"})).status == 200
    with pytest.raises(OSError):
        await exchange_once(running.port, json={"text": "hi"})
    assert [request.path for request in worker.requests] == ["/generate"]


async def test_two_routers_live_side_by_side() -> None:
    async with serving({"enabled": []}) as one, serving({"enabled": []}) as other:
        assert one.port != other.port
        assert {(await exchange_once(port, "GET", "/health")).status for port in (one.port, other.port)} == {200}


async def test_signals_stay_with_whoever_runs_the_loop() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with serving({"enabled": []}):
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


async def test_a_wrong_setting_is_told_before_anything_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTER__NO_SUCH_SETTING", "1")  # what is given is all that counts
    async with serving({"enabled": []}):
        pass
    with pytest.raises(ConfigError, match="no_such_plugin"):
        async with serving({"enabled": ["no_such_plugin"]}):
            raise AssertionError("it must not serve")


async def test_a_plugin_that_will_not_start_says_why() -> None:
    """tito without a tokenizer plugin."""
    with pytest.raises(ConfigError, match="tokenizer"):
        async with serving({"enabled": ["tito"]}):
            raise AssertionError("it must not serve")


async def test_what_the_block_raises_stops_the_router_and_passes() -> None:
    with pytest.raises(KeyError):
        async with serving({"enabled": []}) as running:
            raise KeyError("ours")
    with pytest.raises(OSError):
        await exchange_once(running.port, "GET", "/health")


def test_importing_the_public_names_brings_no_server() -> None:
    code = (
        "import sys, router_core; print('uvicorn' in sys.modules); router_core.serving; print('uvicorn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["False", "True"]
