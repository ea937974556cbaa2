"""Every plugin of ours keeps to the conformance kit, and each kind of broken plugin is found out by it."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import entry_points
from typing import Any

import pytest
from pydantic import ConfigDict

from router_core import PluginSettings, StateKey, hookimpl
from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import assert_plugin_conforms, build_exchange
from router_core.testing.conformance import Report
from router_core.testing.conformance.budget import HookTimes
from router_core.testing.conformance.run import (
    a_client_may_leave_at_every_hook,
    a_client_may_leave_at_every_stage,
    a_closed_session_leaves_nothing,
    a_crowd_is_not_mixed_up,
    a_worker_may_answer_nonsense,
    nonsense_is_no_failure,
    pieces_make_no_difference,
    settings_round_trip,
    switched_off_it_leaves_no_trace,
    unknown_fields_pass,
    what_it_does_not_know_passes,
)

TOKENIZER = {"beside": ["hf_tokenizer"], "plugins": {"hf_tokenizer": {"path": str(ASSETS)}}}
OPTIONS: dict[str, dict[str, Any]] = {
    "hf_tokenizer": {"settings": {"path": str(ASSETS)}},
    "tito": TOKENIZER,
    "radix_cache": TOKENIZER,
}
OURS = sorted(
    point.name for point in entry_points(group="router_core.plugins") if point.dist and point.dist.name == "router-core"
)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("name", OURS)
async def test_a_plugin_of_ours_conforms(name: str, engine: Any) -> None:
    report = await assert_plugin_conforms(name, engine=engine, **OPTIONS.get(name, {}))
    assert report.faults == {}


# ------------------------------------------------------------------------------------------------- broken plugins
class Fine:
    """Does a little at many hooks, and all of it well."""

    class Settings(PluginSettings):
        limit: int = 3
        """A number."""

    def __init__(self, settings: Settings) -> None:
        self.open: set[str] = set()

    @hookimpl
    async def request_start(self, exchange):
        if exchange.session is not None:
            self.open.add(exchange.session.id)
        await asyncio.sleep(0)

    @hookimpl
    async def around_upstream(self, exchange, call_next):
        return await call_next(exchange)

    @hookimpl
    def session_closed(self, session):
        self.open.discard(session.id)


class NoSettingsModel:
    class Settings(PluginSettings):
        model_config = ConfigDict(extra="ignore")

    def __init__(self, settings: Settings) -> None: ...

    @hookimpl
    def response_end(self): ...


class SettingWithoutDocstring(NoSettingsModel):
    class Settings(PluginSettings):
        limit: int = 3


class ChangesHeadersForEver:
    """A route of the class, not of the switched-on plugin: it goes on when it is off."""

    @hookimpl
    async def startup(self, router):
        front = router.open_session.__self__
        assert front is not None
        for worker in router.workers:
            worker.base_url += "/changed"


class AddsToEveryAnswer:
    @hookimpl
    async def around_upstream(self, exchange, call_next):
        answer = await call_next(exchange)
        answer.set_body(await answer.body() + b"!")
        return answer


class EditsEachChunk:
    """Takes a chunk for an event."""

    @hookimpl
    async def around_upstream(self, exchange, call_next):
        answer = await call_next(exchange)

        async def edited(chunks):
            async for chunk in chunks:
                yield chunk.replace(b"text", b"TEXT").replace(b"delta", b"DELTA")

        answer.chunks = edited(answer.chunks)
        return answer


class OneForAll:
    """Gives everybody the newest answer."""

    def __init__(self, settings) -> None:
        self.newest = None

    @hookimpl
    async def around_upstream(self, exchange, call_next):
        answer = await call_next(exchange)
        body = await answer.body()
        headers = answer.headers
        await asyncio.sleep(0.01)
        if self.newest is not None:
            answer.headers = self.newest
        self.newest = headers
        answer.set_body(body)
        return answer


class BusyForEver:
    """Counts what it does, and forgets to count down when its client leaves."""

    def __init__(self, settings) -> None:
        self.running = 0

    @hookimpl
    async def request_start(self, exchange):
        if self.running >= 1:
            await asyncio.sleep(3600)
        self.running += 1
        await asyncio.sleep(0.001)
        self.running -= 1


class LeavesTasks:
    @hookimpl
    async def request_start(self, exchange):
        asyncio.get_running_loop().create_task(asyncio.sleep(3600), name="forgotten")


class TrustsBodies:
    @hookimpl
    async def request_start(self, exchange):
        if exchange.target == "/generate":
            (await exchange.request.json())["text"].split()


class TrustsWorkers:
    @hookimpl
    async def around_upstream(self, exchange, call_next):
        exchange.request.accept_identity()
        answer = await call_next(exchange)
        if answer.status == 200 and exchange.target == "/generate":
            body = await answer.body()
            if not body.startswith(b"data:"):
                len(__import__("json").loads(body)["text"])
        return answer


class KnowsAllKeys:
    @hookimpl
    async def request_start(self, exchange):
        exchange.request.remove_key("future_key")


KEPT = StateKey[str]("kept")


class KeepsSessions:
    def __init__(self, settings) -> None:
        self.sessions = {}

    @hookimpl
    async def request_start(self, exchange):
        if exchange.session is not None:
            self.sessions[exchange.session.id] = time.time()


BROKEN = [
    (NoSettingsModel, settings_round_trip, "take an unknown key"),
    (SettingWithoutDocstring, settings_round_trip, "without a docstring below them: limit"),
    (ChangesHeadersForEver, switched_off_it_leaves_no_trace, "switched off, it changes"),
    (AddsToEveryAnswer, what_it_does_not_know_passes, "changes the answer of a path it cannot know"),
    (EditsEachChunk, pieces_make_no_difference, "bytes reaches the client changed: from byte"),
    (OneForAll, a_crowd_is_not_mixed_up, "one got the answer of another"),
    (BusyForEver, a_client_may_leave_at_every_hook, "a request for /generate got no answer in time"),
    (LeavesTasks, a_client_may_leave_at_every_stage, "run on after the exchange: forgotten"),
    (TrustsBodies, nonsense_is_no_failure, "ends in a 500 of the router"),
    (TrustsWorkers, a_worker_may_answer_nonsense, "ends in a 500 of the router"),
    (KnowsAllKeys, unknown_fields_pass, "a key that nobody knows does not reach the worker"),
    (KeepsSessions, a_closed_session_leaves_nothing, "sessions holds the session's id"),
]


async def test_a_plugin_without_fault_passes_every_check() -> None:
    report = await assert_plugin_conforms(Fine, {"limit": 5})
    assert report.faults == {}
    assert {"request_start", "around_upstream"} <= report.hook_us.keys()
    assert str(report).startswith("plugin 'fine' conforms\n  request_start: ")


@pytest.mark.parametrize(("plugin", "check", "sentence"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
async def test_a_broken_plugin_is_found_out(plugin: type[Any], check: Any, sentence: str) -> None:
    with pytest.raises(AssertionError) as found:
        await assert_plugin_conforms(plugin, checks=[check])
    assert check.__name__.replace("_", " ") in str(found.value)
    assert sentence in str(found.value)


async def test_a_hook_that_raises_is_named_with_its_error() -> None:
    class Raises:
        @hookimpl
        def response_end(self):
            raise ZeroDivisionError("by nought")

    with pytest.raises(AssertionError, match="its hook response_end failed 1 times") as found:
        await assert_plugin_conforms(Raises, checks=[what_it_does_not_know_passes])
    assert "plugin 'raises' failed in hook 'response_end': ZeroDivisionError: by nought" in str(found.value)


async def test_what_a_plugin_keeps_by_design_can_be_named() -> None:
    await assert_plugin_conforms(KeepsSessions, keeps=["sessions"], checks=[a_closed_session_leaves_nothing])


async def test_a_plugin_nobody_installed_is_no_subject() -> None:
    with pytest.raises(ValueError, match="no installed distribution offers a plugin 'no_such'"):
        await assert_plugin_conforms("no_such")


class Slow:
    """Costs time of its own, behind a worker's, which is not its own."""

    @hookimpl
    async def around_upstream(self, exchange, call_next):
        answer = await call_next(exchange)
        time.sleep(0.002)  # noqa: ASYNC251  # the time that is to be seen
        return answer

    @hookimpl
    def response_end(self, exchange):
        time.sleep(0.002)


async def test_what_a_plugin_costs_is_reported_for_each_hook_and_for_an_exchange() -> None:
    report = await assert_plugin_conforms(Slow, checks=[])
    assert report.hook_us.keys() == {"around_upstream", "response_end"}
    assert all(cost >= 2000 for cost in report.hook_us.values())
    assert report.exchange_us >= 4000
    assert f"all hooks: {report.exchange_us:.0f} us an exchange" in str(report)


async def test_what_is_inside_of_the_onion_is_not_its_own_cost() -> None:
    times, inside = HookTimes(), []

    async def call_next(exchange):
        since = time.perf_counter()
        await asyncio.to_thread(time.sleep, 0.05)
        inside.append(time.perf_counter() - since)

    async def around_upstream(exchange, call_next):
        return await call_next(exchange)

    since = time.perf_counter()
    await times.timed("around_upstream", around_upstream)(build_exchange(), call_next)
    (own,) = times.of_hook["around_upstream"]
    assert 0 <= own <= time.perf_counter() - since - inside[0]
    assert list(times.of_exchange.values()) == [own]


def test_a_report_is_readable() -> None:
    report = Report("mine", {"a_check": "it does what it should not"}, {})
    assert str(report) == "plugin 'mine' does not conform\n  a check: it does what it should not"
