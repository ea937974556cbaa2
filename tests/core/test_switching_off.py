"""A plugin that fails again and again and may be skipped is switched off, loudly; one that must not fail never is."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from router_core import hookimpl
from router_core.testing import ScriptedWorker, exchange_once
from router_core.testing.router import running_router

ASK: dict[str, Any] = {"text": "hi"}


class Flaky:
    on_error = "skip"
    calls = 0

    @hookimpl
    async def request_start(self) -> None:
        type(self).calls += 1
        raise ValueError("again")


async def test_it_is_switched_off_after_so_many_failures(caplog: pytest.LogCaptureFixture) -> None:
    Flaky.calls = 0
    async with (
        ScriptedWorker() as worker,
        running_router([worker.url], classes=[Flaky], router={"skip_max_failures": 3}) as router,
    ):
        for _ in range(6):
            assert (await exchange_once(router.port, json=ASK)).status == 200
        shown = (await exchange_once(router.port, "GET", "/plugins")).json()["plugins"]
        assert (await exchange_once(router.port, headers=[("x-router-plugins", "+flaky")], json=ASK)).status == 200
    assert Flaky.calls == 3
    (flaky,) = [plugin for plugin in shown if plugin["name"] == "flaky"]
    assert (flaky["switched_off"], flaky["errors"], flaky["on"]["default"]) == (True, {"request_start": 3}, False)
    (told,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert "plugin 'flaky' IS SWITCHED OFF: it failed 3 times within 60 s" in told.getMessage()


async def test_failures_far_apart_do_not_switch_it_off() -> None:
    from router_core.testing import TurnedClock

    Flaky.calls, clock = 0, TurnedClock()
    settings = {"skip_max_failures": 3, "skip_window_s": 10}
    async with (
        ScriptedWorker() as worker,
        running_router([worker.url], enabled=(), classes=[Flaky], router=settings, clock=clock) as router,
    ):
        for _ in range(6):
            assert (await exchange_once(router.port, json=ASK)).status == 200
            await clock.turn(6.0)
    assert Flaky.calls == 6


@pytest.mark.parametrize(("on_error", "most"), [("fail", 2), ("skip", 0)])
async def test_one_that_must_not_be_skipped_never_is(on_error: str, most: int) -> None:
    cls = type("Strict", (Flaky,), {"on_error": on_error, "calls": 0})
    async with (
        ScriptedWorker() as worker,
        running_router([worker.url], classes=[cls], router={"skip_max_failures": most}) as router,
    ):
        for _ in range(4):
            status = (await exchange_once(router.port, json=ASK)).status
            assert status == (500 if on_error == "fail" else 200)
    assert cls.calls == 4  # type: ignore[attr-defined]
