"""Samples and rewards over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from capture_kit import Capturing, captured_worker, trained_tokenizer
from router_tito.exporters import TraceComposer, as_lists, build_training_arrays, decode, skyrl
from router_tito.exporters.composer import ENTRY_POINTS, forget_composers
from router_tito.exporters.encoding import ENCODINGS
from tito_kit import runs, system, tool, user

from router_core import ConfigError
from router_core.testing import Connection, RawAnswer, ScriptedRequest, ScriptedWorker, exchange_once
from router_core.testing.router import running_router

START = [system("S."), user("q1")]
OBSERVING = {"tito": {"mode": "observe"}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


async def post(made: Capturing, noun: str, body: Any = None, session_id: str = "s", query: str = "") -> RawAnswer:
    target = f"/sessions/{session_id}/{noun}{'?' + query if query else ''}"
    text = b"" if body is None else json.dumps(body).encode()
    return await exchange_once(made.port, target=target, body=text)


async def samples(made: Capturing, session_id: str = "s", **query: Any) -> Any:
    text = "&".join(f"{key}={value}" for key, value in query.items())
    answer = await post(made, "samples", session_id=session_id, query=text)
    assert answer.status == 200, answer.body
    encoding = query.get("encoding", "json")
    assert answer.get("content-type") == ENCODINGS[encoding]
    return decode(answer.body, encoding)


def fault(answer: RawAnswer) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    assert answer.get("x-router-error") == error["code"]
    return answer.status, error["code"], error.get("param")


async def say(made: Capturing, worker: ScriptedWorker, messages: list[Any], text: str, **body: Any) -> dict[str, Any]:
    worker.say(text, ids=trained_tokenizer().encode(text + "<|im_end|>"))
    answer = await made.chat(messages, **body)
    assert answer.status == 200, answer.body
    return {key: value for key, value in answer.json()["choices"][0]["message"].items() if value is not None}


async def two_turns(made: Capturing, worker: ScriptedWorker, **body: Any) -> list[Any]:
    first = await say(made, worker, START, "one", **body)
    messages = [*START, first, user("q2")]
    return [*messages, await say(made, worker, messages, "two", **body)]


@asynccontextmanager
async def two_turns_captured(**settings: Any) -> AsyncIterator[tuple[ScriptedWorker, Capturing]]:
    async with captured_worker(**settings) as (worker, made):
        await two_turns(made, worker)
        yield worker, made


# -- samples --------------------------------------------------------------------------------------------------
async def test_a_session_gives_the_row_of_its_trace() -> None:
    async with two_turns_captured() as (_, made):
        told = await samples(made)
        assert {key: told[key] for key in told if key != "samples"} == {
            "format": "neutral",
            "session_id": "s",
            "picker": "drop_abandoned",
            "complete": True,
            "reasons": [],
            "left_out": [],
            "inflight": 0,
        }
        (row,) = told["samples"]
        (branch,) = made.branches()
        assert row["tokens"] == branch.token_ids.tolist()
        assert row["loss_mask"] == list(branch.loss_mask)
        assert row["logprobs"] == branch.logprobs.tolist()
        assert runs(row["loss_mask"]).count("T") == 2
        assert (row["session_id"], row["trajectory_id"], row["reward"], row["end_status"]) == ("s", "s", None, None)
        assert row["complete"]


@pytest.mark.parametrize("encoding", ["npz", "safetensors"])
async def test_binary_encodings_hold_what_json_says(encoding: str) -> None:
    async with two_turns_captured() as (_, made):
        told = await samples(made, encoding=encoding)
        (row,) = told["samples"]
        assert row["tokens"].dtype == np.int32
        assert row["logprobs"].dtype == np.float64
        assert as_lists(told) == await samples(made)


async def test_the_query_and_a_json_body_say_the_same() -> None:
    async with two_turns_captured() as (_, made):
        by_query = await samples(made, format="skyrl", picker="longest", strict="false", auxiliary="true")
        body = {"format": "skyrl", "picker": "longest", "strict": False, "auxiliary": True}
        by_body = (await post(made, "samples", body)).json()
        assert by_query == by_body
        assert set(by_query["samples"]) == set(skyrl.FIELDS)


@pytest.mark.parametrize("name", ["neutral", "psrl", "skyrl", "slime", "trl", "verl"])
async def test_every_format_is_served_strictly(name: str) -> None:
    async with two_turns_captured() as (_, made):
        assert (await post(made, "reward", {"reward": 1})).status == 200
        assert (await samples(made, format=name, strict=1))["samples"]


async def test_the_trajectory_id_is_the_one_the_session_was_opened_for() -> None:
    async with captured_worker() as (worker, made):
        await made.open("o", trajectory_id="t-7")
        await two_turns(made, worker, session_id="o")
        (row,) = (await samples(made, "o"))["samples"]
        assert (row["session_id"], row["trajectory_id"]) == ("o", "t-7")


async def test_a_limit_that_ended_the_session_is_its_end_status() -> None:
    async with captured_worker() as (worker, made):
        await made.open("o", max_turns=1)
        first = await say(made, worker, START, "one", session_id="o")
        refused = await made.chat([*START, first, user("q2")], session_id="o")
        assert refused.status == 400
        (row,) = (await samples(made, "o"))["samples"]
        assert row["end_status"] == "max_turns"
        (sample,) = (await samples(made, "o", format="slime"))["samples"]
        assert sample["status"] == "truncated"


async def test_auxiliary_calls_are_left_out_and_told_and_given_when_asked_for() -> None:
    async with captured_worker() as (worker, made):
        await say(made, worker, [system("Give a title."), user("q1")], "title")
        await two_turns(made, worker, tools=TOOLS)
        told = await samples(made)
        assert [len(row["turns"]) for row in told["samples"]] == [2]
        assert [left["why"] for left in told["left_out"]] == ["auxiliary call: no_tools"]
        rows = (await samples(made, auxiliary="true"))["samples"]
        assert [[turn["auxiliary"] for turn in row["turns"]] for row in rows] == [["no_tools"], [None, None]]


async def test_the_rules_for_auxiliary_calls_are_settings() -> None:
    async with captured_worker(auxiliary_rules=[], auxiliary_patterns=["^two-line"]) as (worker, made):
        await say(made, worker, [system("Give a title."), user("q1")], "title")
        await say(made, worker, [system("two-line summary"), user("q1")], "summary")
        await two_turns(made, worker, tools=TOOLS)
        told = await samples(made)
        assert [len(row["turns"]) for row in told["samples"]] == [1, 2]
        assert [left["why"] for left in told["left_out"]] == ["auxiliary call: ^two-line"]


@pytest.mark.parametrize("key", ["auxiliary_rules", "auxiliary_patterns"])
async def test_a_rule_that_is_none_is_told_before_anything_serves(key: str) -> None:
    with pytest.raises(ConfigError, match=f"plugins.tito.{key}"):
        async with running_router(enabled=["tito"], plugins={"tito": {"mode": "observe", key: ["("]}}):
            raise AssertionError("it must not serve")


async def test_training_arrays_are_made_of_what_either_route_shows() -> None:
    async with two_turns_captured() as (_, made):
        expected = build_training_arrays(made.trace())
        shown = (await made.get("/sessions/s")).json()
        (row,) = (await samples(made, encoding="npz"))["samples"]
        for session in (shown, row):
            for got, wanted in zip(build_training_arrays(session), expected, strict=True):
                assert np.array_equal(got, wanted)
        assert expected.num_turns == 2


async def test_training_arrays_of_a_shown_session_train_a_shared_turn_once() -> None:
    async with captured_worker() as (worker, made):
        first = await say(made, worker, START, "one")
        for said in ("two", "three"):
            await say(made, worker, [*START, first, user(said)], said)
        shown = (await made.get("/sessions/s")).json()
        for branch in made.branches():
            arrays = build_training_arrays(shown, branch_id=branch.branch_id)
            assert bytes(arrays.response_mask) == branch.loss_mask[len(arrays.prompt_ids) :]
            assert arrays.rollout_log_probs.tolist() == branch.logprobs.tolist()[len(arrays.prompt_ids) :]


def without_logprobs(worker: ScriptedWorker) -> Any:
    """A worker that does not know of logprobs."""

    async def handler(request: ScriptedRequest, connection: Connection) -> bool:
        body = {key: value for key, value in request.json().items() if key != "logprobs"}
        request.body = json.dumps(body).encode()
        return await worker.engine.answer(request, connection)

    return handler


# -- what is missing --------------------------------------------------------------------------------------------
async def test_a_turn_that_was_not_captured_is_told_and_refused_strictly() -> None:
    async with captured_worker() as (worker, made):
        messages = await two_turns(made, worker)
        worker.handler = without_logprobs(worker)
        await say(made, worker, [*messages, user("q3")], "three")
        told = await samples(made)
        assert not told["complete"]
        assert told["reasons"] == [f"branch {told['samples'][0]['branch_id']}: {told['samples'][0]['reasons'][0]}"]
        refused = await post(made, "samples", query="strict=true")
        assert fault(refused) == (409, "incomplete", "strict")
        assert told["reasons"][0] in refused.json()["error"]["message"]


async def test_a_session_without_an_answer_is_empty_and_says_so() -> None:
    async with captured_worker() as (_, made):
        told = await samples(made)
        assert (told["samples"], told["complete"], told["reasons"]) == ([], False, ["nothing was captured"])
        assert fault(await post(made, "samples", query="strict=true")) == (409, "incomplete", "strict")


async def test_a_format_that_cannot_take_the_session_says_what_would_do() -> None:
    async with captured_worker() as (worker, made):
        await say(made, worker, START, "one")
        await say(made, worker, [system("S."), user("else")], "two")
        refused = await post(made, "samples", query="format=trl")
        assert fault(refused) == (409, "unsuitable_format", "format")
        assert "picker 'longest'" in refused.json()["error"]["message"]
        await post(made, "reward", {"reward": {"points": 1}})
        assert fault(await post(made, "samples", query="format=skyrl")) == (409, "unsuitable_format", "format")


# -- rewards --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reward", [1.5, 0, -2, {"score": 1.0, "tests": {"passed": 3}}, {"points": 2}])
async def test_a_reward_is_in_the_rows_that_are_made_later(reward: Any) -> None:
    async with two_turns_captured() as (_, made):
        answer = await post(made, "reward", {"reward": reward})
        assert (answer.status, answer.json()) == (200, {"session_id": "s", "branch_id": None, "reward": reward})
        (row,) = (await samples(made))["samples"]
        assert row["reward"] == reward


async def test_a_later_reward_takes_the_place_of_an_earlier_one() -> None:
    async with two_turns_captured() as (_, made):
        for reward in ({"score": 1.0}, 0.5):
            await post(made, "reward", {"reward": reward})
        (row,) = (await samples(made))["samples"]
        assert row["reward"] == 0.5
        assert (await made.get("/sessions/s")).json()["metadata"]["reward"] == 0.5


@pytest.mark.parametrize("key", ["branch_id", "trajectory_id"])
async def test_a_branch_may_be_rewarded_by_the_id_that_the_session_shows(key: str) -> None:
    async with captured_worker() as (worker, made):
        await say(made, worker, START, "one")
        await say(made, worker, [system("S."), user("else")], "two")
        shown = (await made.get("/sessions/s")).json()
        second = shown["trajectories"][1]["trajectory_id"]
        await post(made, "reward", {"reward": 1})
        answer = await post(made, "reward", {"reward": {"score": 2}, key: second})
        assert answer.json() == {"session_id": "s", "branch_id": second, "reward": {"score": 2}}
        assert [row["reward"] for row in (await samples(made))["samples"]] == [1.0, {"score": 2}]
        assert (await samples(made, format="skyrl"))["samples"]["rewards"] == [0.0, 2.0]


async def test_the_sessions_own_trajectory_id_means_all_of_it() -> None:
    async with captured_worker() as (worker, made):
        await made.open("o", trajectory_id="t-7")
        await two_turns(made, worker, session_id="o")
        answer = await post(made, "reward", {"reward": 3, "trajectory_id": "t-7"}, "o")
        assert answer.json()["branch_id"] is None


# -- bad input ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("query", "body", "expected"),
    [
        ("format=jsonl", None, (400, "bad_value", "format")),
        ("picker=best", None, (400, "bad_value", "picker")),
        ("encoding=pickle", None, (400, "bad_value", "encoding")),
        ("strict=maybe", None, (400, "bad_value", "strict")),
        ("auxiliary=", None, (400, "bad_value", "auxiliary")),
        ("fromat=neutral", None, (400, "unknown_key", "fromat")),
        ("format=neutral&format=psrl", None, (400, "bad_value", "format")),
        ("format=neutral", {"format": "neutral"}, (400, "bad_value", "format")),
        ("", {"format": ["neutral"]}, (400, "bad_value", "format")),
        ("", {"format": {}}, (400, "bad_value", "format")),
        ("", {"strict": 1}, (400, "bad_value", "strict")),
        ("", {"strict": None}, (400, "bad_value", "strict")),
        ("", {"max": 1}, (400, "unknown_key", "max")),
        ("", ["neutral"], (400, "malformed_body", None)),
    ],
)
async def test_a_bad_request_for_samples_is_400_naming_the_key(query: str, body: Any, expected: Any) -> None:
    async with two_turns_captured() as (_, made):
        assert fault(await post(made, "samples", body, query=query)) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (None, (400, "bad_value", "reward")),
        ({}, (400, "bad_value", "reward")),
        ({"reward": None}, (400, "bad_value", "reward")),
        ({"reward": True}, (400, "bad_value", "reward")),
        ({"reward": "1"}, (400, "bad_value", "reward")),
        ({"reward": [1]}, (400, "bad_value", "reward")),
        ({"reward": {}}, (400, "bad_value", "reward")),
        ({"reward": float("nan")}, (400, "bad_value", "reward")),
        ({"reward": float("inf")}, (400, "bad_value", "reward")),
        ({"reward": 10**400}, (400, "bad_value", "reward")),
        ({"reward": {"a": [float("nan")]}}, (400, "bad_value", "reward")),
        ({"reward": {"a": "x" * 70_000}}, (400, "bad_value", "reward")),
        ({"reward": 1, "branch_id": 0}, (400, "bad_value", "branch_id")),
        ({"reward": 1, "branch_id": 99}, (400, "bad_value", "branch_id")),
        ({"reward": 1, "branch_id": "2"}, (400, "bad_value", "branch_id")),
        ({"reward": 1, "branch_id": True}, (400, "bad_value", "branch_id")),
        ({"reward": 1, "trajectory_id": 99}, (400, "bad_value", "trajectory_id")),
        ({"reward": 1, "trajectory_id": "other"}, (400, "bad_value", "trajectory_id")),
        ({"reward": 1, "trajectory_id": [1]}, (400, "bad_value", "trajectory_id")),
        ({"reward": 1, "trajectory_id": 2, "branch_id": 4}, (400, "bad_value", "trajectory_id")),
        ({"reward": 1, "score": 1}, (400, "unknown_key", "score")),
        ([1], (400, "malformed_body", None)),
    ],
)
async def test_a_bad_reward_is_400_naming_the_key_and_changes_nothing(body: Any, expected: Any) -> None:
    async with two_turns_captured() as (_, made):
        assert fault(await post(made, "reward", body)) == expected
        assert (await samples(made))["samples"][0]["reward"] is None


@pytest.mark.parametrize("noun", ["samples", "reward"])
async def test_a_session_that_is_not_there_is_404_and_an_evicted_one_410(noun: str) -> None:
    async with two_turns_captured() as (_, made):
        body = {"reward": 1} if noun == "reward" else None
        assert fault(await post(made, noun, body, "none"))[:2] == (404, "unknown_session")
        sessions = made.router.application.sessions
        sessions.evict(sessions.require("s"), "for this test")
        assert fault(await post(made, noun, body))[:2] == (410, "session_evicted")


@pytest.mark.parametrize("noun", ["samples", "reward"])
async def test_another_method_is_405(noun: str) -> None:
    async with captured_worker() as (_, made):
        answer = await made.get(f"/sessions/s/{noun}")
        assert fault(answer)[:2] == (405, "method_not_allowed")


async def test_a_session_of_a_profile_without_capture_says_so() -> None:
    profiles = {"plain": {"disable": ["tito"]}}
    async with running_router(enabled=["tito"], plugins=OBSERVING, profiles=profiles) as router:
        opened = await exchange_once(router.port, target="/sessions", json={"session_id": "p", "profile": "plain"})
        assert opened.status == 200
        assert fault(await exchange_once(router.port, target="/sessions/p/samples"))[:2] == (409, "not_captured")


# -- composers, and many at once ------------------------------------------------------------------------------
class Broken(TraceComposer):
    def compose(self, outcomes: Any) -> Any:
        raise RuntimeError("out of paper")


class Lengths(TraceComposer):
    def compose(self, outcomes: Any) -> Any:
        return {"lengths": np.array([len(row.tokens) for outcome in outcomes for row in self.rows(outcome)])}


class Stranger:
    def compose(self, outcomes: Any) -> Any:
        return []


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Distributions with composers of their own, as pip leaves them."""
    names = {"broken": "Broken", "lengths": "Lengths", "stranger": "Stranger", "gone": "Gone", "slime": "Lengths"}
    for number, (name, attribute) in enumerate(names.items()):
        folder = tmp_path / f"dist{number}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dist{number}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{name} = {__name__}:{attribute}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    forget_composers()
    yield
    monkeypatch.undo()
    forget_composers()


@pytest.mark.usefixtures("installed")
async def test_a_composer_of_another_distribution_is_a_format() -> None:
    async with two_turns_captured() as (_, made):
        told = await samples(made, format="lengths", encoding="npz")
        assert told["samples"]["lengths"].tolist() == [len(made.branches()[0].token_ids)]
        assert (await samples(made, format="lengths"))["samples"] == as_lists(told["samples"])


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "expected", "told"),
    [
        ("broken", (500, "composer_failed"), "'broken' failed: RuntimeError('out of paper')"),
        ("stranger", (409, "unsuitable_format"), "no subclass of router_tito.exporters.TraceComposer"),
        ("gone", (409, "unsuitable_format"), "'gone' cannot be loaded"),
        ("slime", (409, "unsuitable_format"), "'slime' is offered twice"),
    ],
)
async def test_a_composer_that_cannot_be_used_is_told_by_name(name: str, expected: Any, told: str) -> None:
    async with two_turns_captured() as (_, made):
        answer = await post(made, "samples", query=f"format={name}")
        assert fault(answer)[:2] == expected
        assert told in answer.json()["error"]["message"]


async def test_more_exports_than_run_at_one_time_wait_for_each_other() -> None:
    async with two_turns_captured(max_exports=1) as (_, made):
        answers = await asyncio.gather(*(samples(made, encoding="npz") for _ in range(12)))
        assert len({len(told["samples"]) for told in answers}) == 1


async def test_samples_are_made_while_a_turn_runs_and_say_that_one_does() -> None:
    async with two_turns_captured() as (worker, made):
        words = worker.say("slow", ids=trained_tokenizer().encode("slow<|im_end|>"), hold_after=0)
        running = asyncio.create_task(made.chat([*START, user("more")]))
        await worker.wait_until(lambda: worker.live == 1)
        told = await samples(made)
        assert (told["inflight"], len(told["samples"])) == (1, 1)
        words.release()
        assert (await running).status == 200
        assert len((await samples(made))["samples"]) == 2


async def test_tool_results_between_turns_are_context() -> None:
    async with captured_worker() as (worker, made):
        first = await say(made, worker, START, "one", tools=TOOLS)
        await say(made, worker, [*START, first, tool("r1")], "two", tools=TOOLS)
        (row,) = (await samples(made))["samples"]
        first_turn, second_turn = row["turns"]
        assert row["loss_mask"][first_turn["end"] : second_turn["start"]] == [0] * (
            second_turn["start"] - first_turn["end"]
        )
