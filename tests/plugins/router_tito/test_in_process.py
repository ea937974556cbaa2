"""TITOProxy: one router in the generator's loop, a trace of its own for each agent."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from capture_kit import Door, door_plugin, trained_tokenizer, until
from router_tito.exporters import ExportOptions, export
from router_tito.proxy import ProxyHandle, TITOProxy
from router_tito.trace import Trace
from tito_kit import assistant, runs, system, user

from router_core import ConfigError, Reject
from router_core.testing import RawAnswer, ScriptedWorker, exchange_once, reply_json

START = [system("S."), user("q1")]
Tokenizer = door_plugin(Door(trained_tokenizer()))
"""Found by its name in this module."""


def proxy_of(worker: ScriptedWorker, **tables: Any) -> TITOProxy:
    router = {"middleware_paths": [f"{__name__}:Tokenizer"], **tables.pop("router", {})}
    config = {"enabled": ["tito", "least_inflight"], "router": router, **tables}
    return TITOProxy([worker.url], config=config)


async def chat(handle: ProxyHandle, messages: list[Any], **body: Any) -> RawAnswer:
    port, path = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/.*)", handle.base_url).groups()  # type: ignore[union-attr]
    body = {"model": "m", "messages": messages, **body}
    return await exchange_once(int(port), target=f"{path}/chat/completions", json=body)


def say(worker: ScriptedWorker, text: str, **words: Any) -> Any:
    return worker.say(text, ids=trained_tokenizer().encode(text + "<|im_end|>"), **words)


async def test_several_agents_share_one_server_and_each_has_its_own_trace() -> None:
    async with ScriptedWorker() as worker, proxy_of(worker).serving() as proxy:

        async def agent(number: int) -> Trace:
            trace = Trace()
            async with proxy.register(trace, session_id=f"agent-{number}") as handle:
                assert handle.base_url == f"{proxy.running.url}/sessions/agent-{number}/v1"
                assert handle.session_id == f"agent-{number}"
                messages = [system("S."), user(f"q{number}")]
                for _ in range(2):
                    answer = await chat(handle, messages)
                    assert answer.status == 200, answer.body
                    messages += [assistant(answer.json()["choices"][0]["message"]["content"]), user("more")]
            return trace

        worker.say("fine", ids=trained_tokenizer().encode("fine<|im_end|>"), times=None)
        traces = await asyncio.gather(*map(agent, range(5)))
        assert len(list(proxy.running.router.sessions)) == 0
    for number, trace in enumerate(traces):
        (branch,) = trace.branches()
        assert branch.messages[1] == user(f"q{number}")
        assert runs(branch.loss_mask).count("T") == 2
        assert trace.is_sealed


async def test_the_outcome_has_what_happened_and_what_is_said_of_it() -> None:
    async with ScriptedWorker() as worker, proxy_of(worker).serving() as proxy:
        trace = Trace()
        async with proxy.register(trace, session_id="s", max_turns=1) as handle:
            say(worker, "one")
            assert (await chat(handle, START)).status == 200
            assert (await chat(handle, [*START, assistant("one"), user("q2")])).status == 400
        outcome = handle.outcome(reward=0.5)
        assert (outcome.trace, outcome.trajectory_id, outcome.session_id) == (trace, "s", "s")
        assert (outcome.reward, outcome.stop_reason) == (0.5, "max_turns")
        assert outcome.generation_time is not None and outcome.generation_time > 0
        other = handle.outcome(stop_reason="done", trajectory_id=("a", 1))
        assert (other.stop_reason, other.trajectory_id, other.reward) == ("done", ("a", 1), None)
        (row,) = export(outcome, ExportOptions(strict=True)).rows
        assert (row.session_id, row.end_status) == ("s", "max_turns")


async def test_a_turn_that_could_not_be_captured_is_known_to_the_outcome() -> None:
    async with ScriptedWorker() as worker, proxy_of(worker).serving() as proxy:
        async with proxy.register(Trace()) as handle:
            worker.handler = reply_json({"choices": []})
            odd = [{"role": "assistant", "content": "x", "tool_calls": "none"}, user("q")]
            assert (await chat(handle, odd)).get("x-router-untrainable")
        made = export(handle.outcome(), ExportOptions())
        assert made.reasons == ["1 turns were not captured: unreadable_request", "nothing was captured"]


async def test_the_keys_of_a_session_go_with_a_registration() -> None:
    async with ScriptedWorker() as worker, proxy_of(worker).serving() as proxy:
        options = {"model": "policy", "sampling_params": {"temperature": 0.5}, "trajectory_id": "t-1"}
        async with proxy.register(Trace(), cache_salt="w-3", **options) as handle:
            say(worker, "one")
            await chat(handle, START, temperature=1.0)
            (request,) = [request for request in worker.requests if request.path == "/v1/chat/completions"]
            body = request.json()
            assert (body["cache_salt"], body["model"], body["temperature"]) == ("w-3", "policy", 0.5)
            assert handle.outcome().trajectory_id == "t-1"


async def test_a_session_that_may_not_be_opened_is_refused() -> None:
    async with ScriptedWorker() as worker, proxy_of(worker).serving() as proxy:
        async with proxy.register(Trace(), session_id="s"):
            for trace, keys, told in (
                (Trace(), {"session_id": "s"}, "open already"),
                (Trace(), {"session_id": "a/b"}, "session id"),
                (Trace(), {"max_turns": 0}, "max_turns"),
                (Trace(), {"max_trun": 1}, "max_trun"),
            ):
                with pytest.raises(Reject, match=told):
                    async with proxy.register(trace, **keys):
                        raise AssertionError("it must not open")
        async with proxy.register(Trace(), session_id="s"):
            pass


async def test_a_trace_is_registered_once() -> None:
    async with ScriptedWorker() as worker, proxy_of(worker).serving() as proxy:
        trace = Trace()
        async with proxy.register(trace):
            pass
        with pytest.raises(ValueError, match="sealed"):
            async with proxy.register(trace):
                raise AssertionError("it must not open")


async def test_the_end_of_a_registration_waits_for_its_running_turn() -> None:
    async with ScriptedWorker() as worker, proxy_of(worker).serving() as proxy:
        trace = Trace()
        words = say(worker, "slow", hold_after=0)
        async with proxy.register(trace) as handle:
            running = asyncio.create_task(chat(handle, START))
            await worker.wait_until(lambda: worker.live == 1)
            asyncio.get_running_loop().call_soon(words.release)
        assert (await running).status == 200
        assert len(trace.branches()) == 1


async def test_a_cancelled_agent_leaves_no_session_behind() -> None:
    async with ScriptedWorker() as worker, proxy_of(worker).serving() as proxy:
        trace = Trace()
        say(worker, "slow", hold_after=0)

        async def agent() -> None:
            async with proxy.register(trace) as handle:
                await chat(handle, START)

        running = asyncio.create_task(agent())
        await worker.wait_until(lambda: worker.live == 1)
        (session,) = proxy.running.router.sessions
        running.cancel()
        await until(lambda: session.closing)  # from then on it waits for the turn, whose grace runs
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(list(proxy.running.router.sessions)) == 0
        assert trace.is_sealed
        worker.release()


async def test_overlapping_blocks_share_one_server_and_the_last_one_ends_it() -> None:
    async with ScriptedWorker() as worker:
        proxy = proxy_of(worker)
        with pytest.raises(RuntimeError, match="not served"):
            async with proxy.register(Trace()):
                raise AssertionError("it must not open")
        async with proxy.serving() as one:
            async with proxy.serving() as other:
                assert one is other is proxy
                url, port = proxy.running.url, proxy.running.port
            assert proxy.running.url == url
            assert (await exchange_once(port, "GET", "/health")).status == 200
        with pytest.raises(OSError):
            await exchange_once(port, "GET", "/health")
        async with proxy.serving():
            assert (await exchange_once(proxy.running.port, "GET", "/health")).status == 200


async def test_a_wrong_configuration_is_told_when_serving_begins() -> None:
    async with ScriptedWorker() as worker:
        with pytest.raises(ConfigError, match="tokenizer"):
            async with TITOProxy([worker.url], config={"enabled": ["tito"]}).serving():
                raise AssertionError("it must not serve")
        with pytest.raises(ConfigError, match="no_such"):
            async with TITOProxy([worker.url], tokenizer="/no_such").serving():
                raise AssertionError("it must not serve")
        async with TITOProxy([worker.url], config={"enabled": []}).serving() as proxy:
            with pytest.raises(ValueError, match="'tito' is not enabled"):
                async with proxy.register(Trace()):
                    raise AssertionError("it must not open")
