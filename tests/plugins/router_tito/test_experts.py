from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from router_tito.experts import RoutedRows, Rows
from router_tito.node import ModelTurnResult
from router_tito.trace import Trace
from router_tito.views import BranchView
from tito_kit import assistant, tool, user

ASK = [user("q")]
GOES_ON = [*ASK, assistant("a"), tool("r")]


def rows_of(start: int, end: int, dtype: Any = np.uint8, base: int = 0) -> Rows:
    """Rows that tell their position: ``[position, layer, k] = base + 4 * position + 2 * layer + k``."""
    position = np.arange(start, end)[:, None, None]
    return (base + 4 * position + 2 * np.arange(2)[None, :, None] + np.arange(2)[None, None, :]).astype(dtype)


def two_turns(first: Any, second: Any, **options: Any) -> BranchView:
    """Five prompt ids and four sampled ones, then three more and three sampled: 15 tokens, 14 rows."""
    trace = Trace(**options)
    turn = trace.prepare_turn(ASK)
    trace.commit(turn, _result([1, 2, 3, 4, 5], [11, 12, 13, 14], "a", first))
    turn = trace.prepare_turn(GOES_ON)
    prompt = [1, 2, 3, 4, 5, 11, 12, 13, 14, 6, 7, 8]
    trace.commit(turn, _result(prompt, [15, 16, 17], "b", second))
    (branch,) = trace.branches()
    assert len(branch.token_ids) == 15
    return branch


def _result(prompt: list[int], completion: list[int], content: str, experts: Any) -> ModelTurnResult:
    fault = experts if isinstance(experts, str) else ""
    return ModelTurnResult(
        prompt,
        completion,
        [-0.5] * len(completion),
        assistant(content),
        "stop",
        routed_experts=experts if isinstance(experts, RoutedRows) else None,
        routed_experts_fault=fault,
    )


def test_delta_rows_join_and_the_last_token_of_a_turn_gets_its_row_from_the_next() -> None:
    branch = two_turns(RoutedRows(rows_of(0, 8)), RoutedRows(rows_of(8, 14), start=8))
    assert branch.is_complete
    assert np.array_equal(branch.routed_experts, rows_of(0, 14))


def test_the_first_writer_of_a_row_wins() -> None:
    branch = two_turns(RoutedRows(rows_of(0, 8)), RoutedRows(rows_of(0, 14, base=100)))
    assert branch.routed_experts is not None
    assert np.array_equal(branch.routed_experts[:8], rows_of(0, 8))
    assert np.array_equal(branch.routed_experts[8:], rows_of(8, 14, base=100))


def test_a_full_answer_fills_what_an_earlier_turn_left_open() -> None:
    branch = two_turns(None, RoutedRows(rows_of(0, 14)))
    assert branch.is_complete
    assert np.array_equal(branch.routed_experts, rows_of(0, 14))


def test_integer_types_are_kept_and_joined_without_loss() -> None:
    branch = two_turns(RoutedRows(rows_of(0, 8)), RoutedRows(rows_of(8, 14, np.uint16, 300), start=8))
    assert branch.routed_experts is not None
    assert branch.routed_experts.dtype == np.uint16
    assert np.array_equal(branch.routed_experts[8:], rows_of(8, 14, np.uint16, 300))


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (None, "tokens 8 to 13 are missing"),
        (RoutedRows(rows_of(9, 14), start=9), "tokens 8 to 8 are missing"),
        (RoutedRows(rows_of(8, 13), start=8), "5 rows of routed experts from position 8, expected 6"),
        (RoutedRows(rows_of(8, 15), start=8), "7 rows of routed experts from position 8, expected 6"),
        (RoutedRows(rows_of(8, 14), start=0), "6 rows of routed experts from position 0, expected 14"),
        (RoutedRows(rows_of(8, 14)[:, :1], start=8), r"shape \(1, 2\) in a trace of shape \(2, 2\)"),
        (RoutedRows(rows_of(8, 14, np.int64), start=8), "int64"),
        (RoutedRows(rows_of(8, 14)[0], start=8), "2 dimensions"),
        (RoutedRows(rows_of(0, 16), start=-1), "from position -1"),
        ("not base64 (worker w1)", "not base64"),
    ],
)
def test_a_gap_makes_the_branch_incomplete_and_says_why(second: Any, reason: str) -> None:
    branch = two_turns(RoutedRows(rows_of(0, 8)), second)
    assert branch.routed_experts is None
    assert not branch.is_complete
    assert re.search(reason, " | ".join(branch.reasons))
    assert list(branch.loss_mask) == [0] * 5 + [1] * 4 + [0] * 3 + [1] * 3


def test_a_fault_that_a_later_answer_makes_good_is_none() -> None:
    assert two_turns("garbage", RoutedRows(rows_of(0, 14))).is_complete


def test_a_branch_without_any_is_complete_unless_they_are_expected() -> None:
    assert two_turns(None, None).is_complete
    branch = two_turns(None, None, expects_routed_experts=True)
    assert branch.reasons == ["routed experts of tokens 0 to 13 are missing"]


def test_a_shared_last_token_keeps_its_row_out_of_the_shorter_branch() -> None:
    trace = Trace()
    first = _result([1, 2], [3, 4], "a", RoutedRows(rows_of(0, 3)))
    retry = _result([1, 2], [3, 5], "b", RoutedRows(rows_of(0, 3)))
    trace.commit(trace.prepare_turn(ASK), first)
    trace.commit(trace.prepare_turn(ASK), retry)
    trace.commit(
        trace.prepare_turn([*ASK, assistant("b"), tool("r")]),
        _result([1, 2, 3, 5, 6], [7], "c", RoutedRows(rows_of(3, 5), start=3)),
    )
    shorter, longer = trace.branches()
    assert np.array_equal(shorter.routed_experts, rows_of(0, 3))
    assert np.array_equal(longer.routed_experts, rows_of(0, 5))


def test_a_dropped_later_turn_leaves_a_row_for_the_last_token_that_is_not_given_out() -> None:
    trace = Trace()
    trace.commit(trace.prepare_turn(ASK), _result([1, 2], [3, 4], "a", RoutedRows(rows_of(0, 3))))
    later = trace.commit(
        trace.prepare_turn(GOES_ON), _result([1, 2, 3, 4, 5], [6], "b", RoutedRows(rows_of(3, 5), start=3))
    )
    trace.abandon(later.node_id)
    (branch,) = trace.branches(drop_abandoned=True)
    assert list(branch.token_ids) == [1, 2, 3, 4]
    assert np.array_equal(branch.routed_experts, rows_of(0, 3))


def test_stored_rows_hold_no_reference_to_the_answer_they_came_with() -> None:
    source = rows_of(0, 14)
    branch = two_turns(RoutedRows(rows_of(0, 8)), RoutedRows(source))
    source[:] = 0
    assert np.array_equal(branch.routed_experts, rows_of(0, 14))
    assert sum(chunk.base is not None for node in branch.nodes for _, chunk in node.experts.chunks) == 0
