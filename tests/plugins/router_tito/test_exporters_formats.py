"""Each trainer's format: its fields, where a response begins, and what it has no place for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from exact_cases import START, linear, summarised, tool_dropped
from qwen3_vectors import LINEAR, SUMMARISED
from router_tito.errors import ExportError, IncompleteError
from router_tito.experts import RoutedRows
from router_tito.exporters import ExportOptions, TraceOutcome, composer_names, find_composer, neutral, psrl, skyrl
from router_tito.exporters import slime as slime_format
from router_tito.exporters import trl as trl_format
from router_tito.exporters import verl as verl_format
from router_tito.trace import Trace
from tito_kit import answer, assistant, runs, user

LINEAR_IDS = LINEAR[0][1]
ASK = [user("q")]


def compose(name: str, *outcomes: TraceOutcome, **options: Any) -> Any:
    return find_composer(name)(ExportOptions(**options)).compose(outcomes)


def with_experts(*, is_whole: bool = True) -> Trace:
    """One call, three tokens in and two out; four rows of experts of two layers."""
    trace = Trace(expects_routed_experts=True)
    rows = np.arange(16, dtype=np.uint8).reshape(4, 2, 2)
    experts = RoutedRows(rows) if is_whole else None
    trace.commit(trace.prepare_turn(ASK), answer([11, 12], assistant("a"), [1, 2, 3], routed_experts=experts))
    return trace


# -- what all of them have in common ---------------------------------------------------------------------------
def test_every_format_has_its_fields_in_order() -> None:
    outcome = TraceOutcome(linear().trace, "t", 1.0)
    expected = {
        "neutral": neutral.FIELDS,
        "psrl": psrl.FIELDS,
        "skyrl": skyrl.FIELDS,
        "slime": slime_format.FIELDS,
        "trl": trl_format.FIELDS,
        "verl": verl_format.FIELDS,
    }
    assert composer_names() == sorted(expected)
    for name, fields in expected.items():
        composed = compose(name, outcome)
        assert tuple(composed[0] if isinstance(composed, list) else composed) == fields


@pytest.mark.parametrize("name", ["neutral", "psrl", "skyrl", "slime", "trl", "verl"])
def test_what_is_composed_is_plain_python_that_json_can_write(name: str) -> None:
    composed = compose(name, TraceOutcome(linear().trace, "t", 1.0))
    assert json.loads(json.dumps(composed)) == composed


@pytest.mark.parametrize("name", ["neutral", "psrl", "skyrl", "slime", "trl", "verl"])
def test_a_strict_composer_refuses_a_row_without_its_experts(name: str) -> None:
    outcome = TraceOutcome(with_experts(is_whole=False), "t", 1.0)
    with pytest.raises(IncompleteError, match="routed experts of tokens 0 to 3 are missing"):
        compose(name, outcome, strict=True)
    assert compose(name, outcome)


@pytest.mark.parametrize(
    ("name", "key", "is_array"),
    [
        ("neutral", "routed_experts", False),
        ("psrl", "routed_experts", True),
        ("skyrl", "rollout_expert_indices", False),
        ("slime", "rollout_routed_experts", True),
        ("verl", "routed_experts", True),
    ],
)
def test_experts_have_one_row_fewer_than_tokens_and_no_padding(name: str, key: str, is_array: bool) -> None:
    composed = compose(name, TraceOutcome(with_experts(), "t", 1.0))
    experts = composed[key][0] if isinstance(composed, dict) else composed[0][key]
    assert isinstance(experts, np.ndarray) == is_array
    assert np.asarray(experts).tolist() == np.arange(16).reshape(4, 2, 2).tolist()


# -- psrl ------------------------------------------------------------------------------------------------------
def test_psrl_takes_one_dict_for_each_trajectory() -> None:
    (row,) = compose("psrl", TraceOutcome(linear().trace, "t"))
    assert row["prompt_ids"] + row["response_ids"] == LINEAR_IDS
    assert runs(row["response_mask"]) == "T22 c15 T22 c15 T9"
    assert (len(row["logprobs"]), row["num_turns"], row["routed_experts"]) == (83, 3, None)
    assert len(compose("psrl", TraceOutcome(tool_dropped().trace, "t"))) == 2


# -- skyrl -----------------------------------------------------------------------------------------------------
@dataclass
class TrajectoryID:
    instance_id: str
    repetition_id: int


def test_skyrl_has_an_entry_for_each_branch_side_by_side_under_its_trajectory() -> None:
    first, second = TrajectoryID("a", 0), TrajectoryID("a", 1)
    outcomes = [
        TraceOutcome(summarised().trace, first, 1.0),
        TraceOutcome(linear().trace, second, 0.5, "context_length"),
    ]
    output = find_composer("skyrl")().compose(outcomes)
    assert [len(output[name]) for name in skyrl.FIELDS if isinstance(output[name], list)] == [3] * 8
    assert output["trajectory_ids"] == [first, first, second]
    assert output["is_last_step"] == [False, True, True]
    assert output["rewards"] == [0.0, 1.0, 0.5]
    assert output["stop_reasons"] == ["stop", "stop", "context_length"]
    assert output["rollout_expert_indices"] is None
    assert output["rollout_metrics"] == {"generate/avg_num_turns": 3.5, "generate/avg_num_branches": 1.5}
    sequences = [p + r for p, r in zip(output["prompt_token_ids"], output["response_ids"], strict=True)]
    assert sequences == [SUMMARISED[0][1], SUMMARISED[1][1], LINEAR_IDS]
    for response, mask, logprobs in zip(
        output["response_ids"], output["loss_masks"], output["rollout_logprobs"], strict=True
    ):
        assert len(response) == len(mask) == len(logprobs)
        assert mask[0] == 1


def test_skyrl_begins_a_response_with_the_first_token_trained_in_it() -> None:
    output = compose("skyrl", TraceOutcome(tool_dropped().trace, "t", 1.0))
    assert [len(prompt) for prompt in output["prompt_token_ids"]] == [17, 54]
    assert [runs(mask) for mask in output["loss_masks"]] == ["T22 c22 T22", "T9"]


def test_skyrl_gives_a_branch_its_own_reward() -> None:
    outcome = TraceOutcome(tool_dropped().trace, "t", 1.0, branch_rewards={5: 0.25})
    assert compose("skyrl", outcome)["rewards"] == [0.25, 1.0]


def test_skyrl_takes_numbers_as_rewards_and_misses_them() -> None:
    trace = linear().trace
    with pytest.raises(IncompleteError, match="branch 6: it has no reward"):
        compose("skyrl", TraceOutcome(trace, "t"), strict=True)
    assert compose("skyrl", TraceOutcome(trace, "t"))["rewards"] == [None]
    assert compose("skyrl", TraceOutcome(trace, "t", {"score": 2, "why": "x"}))["rewards"] == [2.0]
    with pytest.raises(ExportError, match="no number 'score'"):
        compose("skyrl", TraceOutcome(trace, "t", {"points": 2}))


def test_skyrl_has_no_entry_for_a_rollout_without_samples() -> None:
    outcomes = [TraceOutcome(Trace(), "empty", 0.0), TraceOutcome(linear().trace, "t", 1.0)]
    assert compose("skyrl", *outcomes)["trajectory_ids"] == ["t"]
    with pytest.raises(IncompleteError, match="nothing was captured"):
        compose("skyrl", *outcomes, strict=True)
    assert compose("skyrl", outcomes[0])["response_ids"] == []


def test_skyrl_marks_a_row_without_experts_beside_one_that_has_them() -> None:
    outcomes = [TraceOutcome(with_experts(), "a", 1.0), TraceOutcome(with_experts(is_whole=False), "b", 1.0)]
    assert [len(rows) for rows in compose("skyrl", *outcomes)["rollout_expert_indices"]] == [4, 0]


# -- slime -----------------------------------------------------------------------------------------------------
def test_slime_takes_whole_tokens_and_the_length_of_the_response() -> None:
    trace = linear(weight_version="3").trace
    (sample,) = compose("slime", TraceOutcome(trace, "t", {"acc": 1}, session_id="s"))
    assert (sample["tokens"], sample["response_length"]) == (LINEAR_IDS, 83)
    assert len(sample["loss_mask"]) == len(sample["rollout_log_probs"]) == 83
    assert sample["weight_versions"] == ["3", "3", "3"]
    assert (sample["prompt"], sample["reward"], sample["session_id"]) == (START, {"acc": 1}, "s")
    assert (sample["status"], sample["remove_sample"]) == ("completed", False)
    assert sample["metadata"] == {
        "trajectory_id": "t",
        "branch_id": 6,
        "end_status": None,
        "complete": True,
        "reasons": [],
        "num_turns": 3,
    }


def test_slimes_experts_are_int32_as_miles_demands() -> None:
    (sample,) = compose("slime", TraceOutcome(with_experts(), "t"))
    assert sample["rollout_routed_experts"].dtype == np.int32
    assert len(sample["rollout_routed_experts"]) == len(sample["tokens"]) - 1


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason", "status"),
    [
        ("stop", None, "completed"),
        ("tool_calls", None, "completed"),
        ("length", None, "truncated"),
        ("stop", "max_turns", "truncated"),
        ("stop", "context_length", "truncated"),
        ("stop", "error", "failed"),
        ("stop", "agent_timeout", "failed"),
        ("length", "aborted", "aborted"),
        ("stop", "complete", "completed"),
    ],
)
def test_slimes_status_is_how_the_rollout_ended(finish_reason: str, stop_reason: str | None, status: str) -> None:
    trace = Trace()
    trace.commit(trace.prepare_turn(ASK), answer([11], assistant("a"), [1], finish_reason=finish_reason))
    (sample,) = compose("slime", TraceOutcome(trace, "t", stop_reason=stop_reason))
    assert sample["status"] == status


# -- verl ------------------------------------------------------------------------------------------------------
def test_verl_counts_messages_as_turns_and_keeps_more_than_its_score_of_a_reward() -> None:
    outcome = TraceOutcome(linear(weight_version="3").trace, "t", {"score": 0.5, "acc": True}, "done", 2.5, "s")
    (output,) = compose("verl", outcome)
    assert output["prompt_ids"] + output["response_ids"] == LINEAR_IDS
    assert runs(output["response_mask"]) == "T22 c15 T22 c15 T9"
    assert len(output["response_logprobs"]) == 83
    assert (output["num_turns"], output["reward_score"], output["multi_modal_data"]) == (6, 0.5, None)
    assert output["metrics"] == {"generate_sequences": 2.5, "tool_calls": 0.0}
    assert output["extra_fields"] == {
        "session_id": "s",
        "trajectory_id": "t",
        "branch_id": 6,
        "weight_versions": ["3", "3", "3"],
        "complete": True,
        "reasons": [],
        "end_status": "done",
        "reward_extra_info": {"score": 0.5, "acc": True},
    }


# -- trl -------------------------------------------------------------------------------------------------------
def test_trl_takes_one_sample_for_each_rollout() -> None:
    outcomes = [TraceOutcome(linear().trace, "a", 1.0), TraceOutcome(linear().trace, "b")]
    output = compose("trl", *outcomes)
    assert [p + c for p, c in zip(output["prompt_ids"], output["completion_ids"], strict=True)] == [LINEAR_IDS] * 2
    assert [runs(mask) for mask in output["env_mask"]] == ["T22 c15 T22 c15 T9"] * 2
    assert [len(logprobs) for logprobs in output["logprobs"]] == [83, 83]
    assert output["env_reward"] == [1.0, None]
    branched = TraceOutcome(tool_dropped().trace, "c")
    with pytest.raises(ExportError, match="'c' has 2: ask for the picker 'longest'"):
        compose("trl", branched)
    assert len(compose("trl", branched, picker="longest")["prompt_ids"]) == 1
