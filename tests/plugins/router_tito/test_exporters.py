"""Rows: what the exact cases become, what is left out, what is missing, and in which row a token is trained."""

from __future__ import annotations

import sys
from subprocess import run
from typing import Any

import numpy as np
import pytest
from exact_cases import START, calling, coalesced, linear, retried, summarised, tool_dropped
from qwen3_vectors import LINEAR, RETRIED, SUMMARISED, THINKING_STRIPPED, TOOL_DROPPED
from router_tito.errors import ExportError, IncompleteError
from router_tito.experts import RoutedRows
from router_tito.exporters import (
    ExportOptions,
    SampleRow,
    TraceComposer,
    TraceOutcome,
    build_training_arrays,
    export,
    find_composer,
)
from router_tito.trace import Trace
from tito_kit import Agent, answer, assistant, runs, tool, user

ASK = [user("q")]


def rows_of(trace: Trace, **options: Any) -> list[SampleRow]:
    return export(TraceOutcome(trace, "t"), ExportOptions(**options)).rows


def cut(row: SampleRow) -> tuple[str, list[int]]:
    return runs(row.loss_mask), list(row.tokens)


CASES = {
    "linear": (linear, "all_leaves", LINEAR),
    "a tool message dropped": (tool_dropped, "all_leaves", TOOL_DROPPED),
    "summarised": (summarised, "all_leaves", SUMMARISED),
    "thinking stripped, strict": (lambda: linear("strict", thinks=False), "all_leaves", THINKING_STRIPPED),
    "thinking stripped, optional": (lambda: linear("reasoning_optional", thinks=False), "all_leaves", LINEAR),
    "retried": (retried, "all_leaves", RETRIED),
    "retried, abandoned dropped": (retried, "drop_abandoned", RETRIED[1:]),
    "retried, coalesced": (coalesced, "all_leaves", RETRIED[1:]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_exact_cases_come_out_as_rows(name: str) -> None:
    play, picker, expected = CASES[name]
    agent: Agent = play()
    rows = rows_of(agent.trace, picker=picker)
    assert [cut(row) for row in rows] == expected
    for row in rows:
        assert len(row.tokens) == len(row.loss_mask) == len(row.logprobs)
        assert [bool(logprob) for logprob in row.logprobs] == [bool(bit) for bit in row.loss_mask]
        assert row.complete
        assert row.reasons == ()


@pytest.mark.parametrize("name", CASES)
def test_the_default_picker_loses_no_token_of_the_exact_cases_but_the_abandoned_ones(name: str) -> None:
    agent: Agent = CASES[name][0]()
    trained = sum(sum(row.loss_mask) for row in rows_of(agent.trace))
    lost = 22 if agent.trace.branches()[0].is_abandoned else 0
    assert trained == sum(len(node.sampled_ids) for node in agent.trace.nodes) - lost


def test_a_row_has_the_keys_of_the_design_in_their_order() -> None:
    agent = linear(model="m", weight_version="7", sampling_params={"temperature": 1.0}, cached_tokens=3)
    outcome = TraceOutcome(agent.trace, "t-1", 0.5, "max_turns", 1.5, session_id="s")
    (row,) = export(outcome, ExportOptions()).rows
    written = row.to_dict()
    assert list(written) == [
        *("session_id", "trajectory_id", "branch_id", "tokens", "loss_mask", "logprobs", "turns", "weight_versions"),
        *("routed_experts", "complete", "reasons", "end_status", "reward"),
    ]
    assert written["tokens"].tolist() == LINEAR[0][1]
    assert (written["tokens"].dtype, written["loss_mask"].dtype, written["logprobs"].dtype) == ("int32", "u1", "f8")
    assert written["loss_mask"].sum() == 53
    assert {key: written[key] for key in ("session_id", "trajectory_id", "branch_id", "routed_experts")} == {
        "session_id": "s",
        "trajectory_id": "t-1",
        "branch_id": 6,
        "routed_experts": None,
    }
    assert (written["complete"], written["reasons"], written["end_status"], written["reward"]) == (
        True,
        [],
        "max_turns",
        0.5,
    )
    assert written["weight_versions"] == [
        {"version": "7", "start": 17, "end": 39},
        {"version": "7", "start": 54, "end": 76},
        {"version": "7", "start": 91, "end": 100},
    ]
    assert written["turns"][1] == {
        "turn_id": 2,
        "node_id": 4,
        "start": 54,
        "end": 76,
        "is_trained": True,
        "finish_reason": "stop",
        "model": "m",
        "weight_version": "7",
        "sampling_params": {"temperature": 1.0},
        "cached_tokens": 3,
        "how": "bridge",
        "is_delivered": True,
        "auxiliary": None,
    }


def test_the_longest_branch_trains_what_it_shares_with_those_that_are_left_out() -> None:
    """Its first turn is trained in the first row where there are two; alone it must train it itself."""
    agent = tool_dropped()
    assert [runs(row.loss_mask) for row in rows_of(agent.trace)] == ["c17 T22 c22 T22", "c54 T9"]
    made = export(TraceOutcome(agent.trace, "t"), ExportOptions(picker="longest"))
    assert [runs(row.loss_mask) for row in made.rows] == ["c17 T22 c22 T22"]
    assert [(left.branch_id, left.why) for left in made.left_out] == [(7, "not the longest")]
    agent.ask([*START, calling(1), tool("r1")], [*range(40)], assistant("more"))
    assert [runs(row.loss_mask) for row in rows_of(agent.trace, picker="longest")] == ["c17 T22 c15 T40"]


def test_of_equally_long_branches_the_first_is_the_longest() -> None:
    trace = Trace()
    for number in range(3):
        trace.commit(trace.prepare_turn([user(f"q{number}")]), answer([10 + number], assistant(), [number]))
    assert [list(row.tokens) for row in rows_of(trace, picker="longest")] == [[0, 10]]


def test_what_is_left_out_is_told() -> None:
    made = export(TraceOutcome(retried().trace, "t"), ExportOptions())
    assert [(left.branch_id, left.why) for left in made.left_out] == [(2, "abandoned")]


def test_an_unknown_picker_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ExportError, match="'shortest': one of all_leaves, drop_abandoned, longest"):
        export(TraceOutcome(Trace(), "t"), ExportOptions(picker="shortest"))


# -------------------------------------- versions
def versions(*turns: dict[str, Any]) -> SampleRow:
    """A row of turns of three sampled tokens, each with these facts."""
    trace, messages, prompt = Trace(), [user("q")], [1, 2]
    for number, facts in enumerate(turns):
        said = assistant(f"a{number}")
        sampled = [10 * number + place for place in (11, 12, 13)]
        trace.commit(trace.prepare_turn(messages), answer(sampled, said, prompt, **facts))
        messages, prompt = [*messages, said, user("go on")], [*prompt, *sampled, 3]
    (row,) = rows_of(trace)
    return row


def spans(row: SampleRow) -> list[tuple[str | None, int, int]]:
    return [(span.version, span.start, span.end) for span in row.weight_versions]


def test_each_sampled_token_carries_its_version() -> None:
    row = versions({"weight_version": "1"}, {"weight_version": "3", "weight_versions": (("2", 0, 1), ("3", 1, 3))})
    assert spans(row) == [("1", 2, 5), ("2", 6, 7), ("3", 7, 9)]
    assert row.version_list == ["1", "2", "3"]
    assert row.complete
    sampled = [place for place, bit in enumerate(row.loss_mask) if bit]
    assert sampled == [place for _, start, end in spans(row) for place in range(start, end)]


def test_where_no_version_was_ever_told_none_is_missing() -> None:
    row = versions({}, {})
    assert spans(row) == [(None, 2, 5), (None, 6, 9)]
    assert (row.version_list, row.reasons) == ([], ())


def test_where_versions_are_told_an_untold_one_is_missing() -> None:
    row = versions({"weight_version": "1"}, {})
    assert row.reasons == ("the weight version of tokens 6 to 8 is not known",)
    row = versions({"weight_version": "2", "weight_versions": (("1", 0, 1),)})
    assert spans(row) == [("1", 2, 3), (None, 3, 5)]
    assert row.reasons == ("the weight version of tokens 3 to 4 is not known",)


# -------------------------------------- what is missing
def test_strict_refuses_what_lenient_tells() -> None:
    trace = linear().trace
    trace.mark_untrainable(trace.prepare_turn([*START, user("x")]), "no_ids")
    outcome = TraceOutcome(trace, "t", missed={"unreadable_request": 2, "other": 0})
    made = export(outcome, ExportOptions())
    assert made.rows[0].complete
    assert made.reasons == [
        "turn 4 was not captured: no_ids (it is in no sample)",
        "2 turns were not captured: unreadable_request",
    ]
    composer = find_composer("neutral")(ExportOptions(strict=True))
    with pytest.raises(IncompleteError) as refused:
        composer.compose([outcome])
    assert refused.value.reasons == made.reasons
    assert len(find_composer("neutral")(ExportOptions()).compose([outcome])) == 1


def test_a_turn_that_was_tried_again_is_not_missing() -> None:
    agent = linear()
    again = [*START, user("x")]
    agent.trace.mark_untrainable(agent.trace.prepare_turn(again), "no_ids")
    agent.ask(again, [1, 2], assistant("ok"))
    assert export(TraceOutcome(agent.trace, "t"), ExportOptions()).reasons == []


def test_a_gap_in_a_branch_is_told_once_with_the_branch() -> None:
    trace = Trace()
    trace.commit(trace.prepare_turn(ASK), answer([10], assistant("a"), [1]))
    trace.mark_untrainable(trace.prepare_turn([*ASK, assistant("a"), tool("r")]), "no_ids")
    made = export(TraceOutcome(trace, "t"), ExportOptions())
    assert made.reasons == ["branch 1: turn 2 was not captured: no_ids"]
    assert (made.rows[0].complete, made.rows[0].reasons) == (False, ("turn 2 was not captured: no_ids",))


def test_an_empty_trace_is_no_quiet_nothing() -> None:
    made = export(TraceOutcome(Trace(), "t"), ExportOptions())
    assert (made.rows, made.reasons) == ([], ["nothing was captured"])


def test_experts_are_one_row_fewer_than_tokens_or_none_at_all() -> None:
    def experts(start: int, end: int) -> RoutedRows:
        return RoutedRows(np.arange(4 * start, 4 * end, dtype=np.uint8).reshape(-1, 2, 2), start)

    trace = Trace(expects_routed_experts=True)
    trace.commit(trace.prepare_turn(ASK), answer([10, 11], assistant("a"), [1, 2], routed_experts=experts(0, 3)))
    (row,) = rows_of(trace)
    assert row.routed_experts is not None
    assert (row.routed_experts.shape, row.complete) == ((3, 2, 2), True)
    history = [*ASK, assistant("a"), tool("r")]
    trace.commit(trace.prepare_turn(history), answer([12], assistant("b"), [1, 2, 10, 11, 3]))
    (row,) = rows_of(trace)
    assert row.routed_experts is None
    assert row.reasons == ("routed experts of tokens 3 to 4 are missing",)


# -------------------------------------- rewards
def test_a_branch_has_its_own_reward_before_the_rollouts() -> None:
    trace = tool_dropped().trace
    outcome = TraceOutcome(trace, "t", 1.0, branch_rewards={7: {"score": 0.25}})
    assert [row.reward for row in export(outcome, ExportOptions()).rows] == [1.0, {"score": 0.25}]


def test_the_reward_of_an_answer_stays_with_it_when_somebody_goes_on_from_it() -> None:
    trace = linear().trace
    outcome = TraceOutcome(trace, "t", 1.0, branch_rewards={2: 0.5, 4: 0.75})
    assert [row.reward for row in export(outcome, ExportOptions()).rows] == [0.75]


# -------------------------------------- training arrays
def test_training_arrays_begin_with_the_first_prompt_and_keep_every_token() -> None:
    arrays = build_training_arrays(linear().trace)
    assert arrays._fields == (
        *("prompt_ids", "response_ids", "response_mask", "rollout_log_probs", "num_turns", "routed_experts"),
    )
    assert arrays.prompt_ids.tolist() + arrays.response_ids.tolist() == LINEAR[0][1]
    assert runs(arrays.response_mask.tolist()) == "T22 c15 T22 c15 T9"
    assert len(arrays.response_ids) == len(arrays.response_mask) == len(arrays.rollout_log_probs)
    assert (arrays.num_turns, arrays.routed_experts) == (3, None)
    assert [array.dtype for array in arrays[:4]] == ["i8", "i8", "u1", "f8"]


def test_training_arrays_of_one_of_several_branches() -> None:
    trace = tool_dropped().trace
    with pytest.raises(ExportError, match=r"2 branches \(5, 7\): say which by branch_id"):
        build_training_arrays(trace)
    assert runs(build_training_arrays(trace, branch_id=7).response_mask.tolist()) == "c37 T9"
    with pytest.raises(ExportError, match="no branch 3; branches: 5, 7"):
        build_training_arrays(trace, branch_id=3)


def test_training_arrays_come_from_whatever_holds_a_trajectory() -> None:
    trace = linear().trace
    outcome = TraceOutcome(trace, "t")
    (row,) = export(outcome, ExportOptions()).rows
    written = find_composer("neutral")().compose([outcome])[0]
    expected = build_training_arrays(trace)
    for session in (outcome, row, row.to_dict(), written):
        for made, wanted in zip(build_training_arrays(session), expected, strict=True):
            assert np.array_equal(made, wanted)
    for nothing in (None, {}, {"records": []}):
        with pytest.raises(ExportError):
            build_training_arrays(nothing)


def test_training_arrays_are_strict_unless_told_otherwise() -> None:
    trace = Trace(expects_routed_experts=True)
    trace.commit(trace.prepare_turn(ASK), answer([10, 11], assistant("a"), [1, 2]))
    with pytest.raises(IncompleteError, match="routed experts"):
        build_training_arrays(trace)
    assert build_training_arrays(trace, strict=False).routed_experts is None


# -------------------------------------- composers
class Lengths(TraceComposer):
    """As a user writes one."""

    def compose(self, outcomes: Any) -> Any:
        return [len(row.tokens) for outcome in outcomes for row in self.rows(outcome)]


def test_a_composer_of_ones_own_gets_its_rows_from_the_base() -> None:
    outcomes = [TraceOutcome(linear().trace, 1), TraceOutcome(tool_dropped().trace, 2)]
    assert Lengths().compose(outcomes) == Lengths().pack(outcomes) == [100, 83, 63]


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ExportError, match="'jsonl': one of neutral, psrl, skyrl, slime, trl, verl"):
        find_composer("jsonl")


def test_exporters_are_imported_without_a_server() -> None:
    code = "import sys, router_tito.exporters as e; e.composer_names(); print(*sys.modules)"
    done = run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "router_tito" in loaded
    assert not loaded & {"router_core", "starlette", "uvicorn", "aiohttp", "transformers", "torch", "safetensors"}
