from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_routed_experts.codecs import Decoded
from router_routed_experts.reasons import Reason, RowsError
from router_routed_experts.rows import Layout, RowBlock, RowTable, Verdict, judge

from .answers import LAYERS, TOP_K, experts_of

LAYOUT = Layout(LAYERS, TOP_K, num_experts=8)


def decoded(experts: np.ndarray, *, has_shape: bool = False, start: int | None = None) -> Decoded:
    return Decoded(experts.astype(np.uint8).ravel(), experts.shape if has_shape else None, start)


def judged(value: Decoded | RowsError | None, prompt: int = 5, output: int = 4, **options) -> Verdict:
    options.setdefault("layout", LAYOUT)
    return judge(value, prompt_tokens=prompt, output_tokens=output, **options)


def test_a_full_answer_has_a_row_less_than_tokens() -> None:
    experts = experts_of(8)
    verdict = judged(decoded(experts))
    assert verdict.is_complete
    assert (verdict.block.start, verdict.block.stop) == (0, 8)
    assert (verdict.block.experts == experts).all()
    with pytest.raises(ValueError, match="read-only"):
        verdict.block.experts[0] = 0


@pytest.mark.parametrize("rows", [0, 5, 7, 9])
def test_rows_too_few_or_too_many_are_reported_and_never_filled_up(rows: int) -> None:
    verdict = judged(decoded(experts_of(rows)))
    assert (verdict.block, verdict.reason) == (None, Reason.ROW_COUNT)
    assert f"{rows} rows came, not 8 rows for 9 tokens" in verdict.detail


def test_rows_from_the_start_that_was_asked_for() -> None:
    verdict = judged(decoded(experts_of(5)), start=3)
    assert (verdict.block.start, verdict.block.stop) == (3, 8)
    assert judged(decoded(experts_of(4)), start=3).reason is Reason.ROW_COUNT
    assert judged(decoded(experts_of(0)), start=8).is_complete
    assert judged(decoded(experts_of(3)), start=12).reason is Reason.ROW_COUNT


def test_a_full_answer_to_a_request_for_fewer_rows_is_full() -> None:
    assert judged(decoded(experts_of(8)), start=3).block.start == 0


def test_a_stated_start_wins() -> None:
    assert judged(decoded(experts_of(5), has_shape=True, start=3)).block.start == 3
    assert judged(decoded(experts_of(8), has_shape=True, start=3)).reason is Reason.ROW_COUNT


def test_nothing_came() -> None:
    assert judged(None).reason is Reason.MISSING
    assert judged(None, output=2, is_aborted=True).reason is Reason.MISSING
    assert judged(None, output=0).reason is Reason.MISSING


def test_an_abort_with_no_token_and_no_rows_is_complete() -> None:
    assert judged(None, output=0, is_aborted=True) == Verdict()
    assert judged(decoded(experts_of(4)), output=0, is_aborted=True).block.stop == 4


def test_an_error_of_the_decoder_is_the_verdict() -> None:
    assert judged(RowsError(Reason.NOT_BASE64, "x")) == Verdict(reason=Reason.NOT_BASE64, detail="x")


def test_the_layout_of_the_model_is_held() -> None:
    assert judged(decoded(experts_of(8, layers=3), has_shape=True)).reason is Reason.SHAPE
    assert judged(decoded(experts_of(8, top_k=3), has_shape=True)).reason is Reason.SHAPE
    assert judged(Decoded(experts_of(8).astype(np.uint8).ravel(), (8, 8))).reason is Reason.SHAPE
    assert judged(Decoded(experts_of(8).astype(np.uint8).ravel()[:-1])).reason is Reason.WRONG_SIZE
    assert judged(decoded(experts_of(8)), layout=None).reason is Reason.LAYOUT_UNKNOWN
    assert judged(decoded(experts_of(8), has_shape=True), layout=None).is_complete


def test_an_expert_that_the_model_does_not_have_is_reported() -> None:
    experts = experts_of(8)
    experts[3, 1, 0] = 8
    assert judged(decoded(experts)).reason is Reason.ID_RANGE
    assert judged(decoded(experts), layout=Layout(LAYERS, TOP_K)).is_complete


@pytest.mark.parametrize("top_k", [2, 3, 8])
def test_rows_that_no_router_wrote_are_reported(top_k: int) -> None:
    experts = experts_of(8, experts=16, top_k=top_k)
    layout = Layout(LAYERS, top_k)
    assert judged(decoded(experts), layout=layout).is_complete
    experts[2:4, 1] = 0
    verdict = judged(decoded(experts), layout=layout)
    assert verdict.reason is Reason.ZERO_ROWS
    assert "2 rows are 0 in a layer that has experts, first row 2" in verdict.detail
    experts[:] = 0
    assert judged(decoded(experts), layout=layout).reason is Reason.ZERO_ROWS


def test_dense_layers_are_zero_and_no_fault() -> None:
    experts = experts_of(8)
    experts[:, 0] = 0
    assert judged(decoded(experts)).is_complete
    assert judged(decoded(experts), layout=Layout(LAYERS, TOP_K, dense_layers=frozenset({0}))).is_complete
    assert judged(decoded(experts), layout=Layout(LAYERS, TOP_K, dense_layers=frozenset())).reason is Reason.ZERO_ROWS


def test_a_single_expert_may_be_number_0() -> None:
    assert judged(decoded(np.zeros((8, LAYERS, 1), np.int32)), layout=Layout(LAYERS, 1)).is_complete


def test_turns_are_joined_without_a_gap_at_the_last_token_of_the_first() -> None:
    whole = experts_of(14)
    first = judged(decoded(whole[:8]))
    second = judged(decoded(whole[8:]), prompt=12, output=3, start=8)
    table = RowTable().extended(first.block).extended(second.block)
    assert table.row_count == 14
    assert (np.load(io.BytesIO(table.to_npy())) == whole).all()


def test_who_wrote_a_row_first_stays() -> None:
    decoded_rows, prefilled = experts_of(8, seed=1).astype(np.uint8), experts_of(14, seed=2).astype(np.uint8)
    table = RowTable().extended(RowBlock(0, decoded_rows)).extended(RowBlock(0, prefilled))
    rows = np.load(io.BytesIO(table.to_npy()))
    assert (rows[:8] == decoded_rows).all()
    assert (rows[8:] == prefilled[8:]).all()
    assert table.extended(RowBlock(2, prefilled[:5])) is table
    assert table.blocks[1].base is None  # no view that would keep the whole full answer


def test_rows_behind_a_gap_or_of_another_model_are_refused() -> None:
    table = RowTable().extended(RowBlock(0, experts_of(8).astype(np.uint8)))
    with pytest.raises(RowsError, match="rows 8 to 9 never came"):
        table.extended(RowBlock(10, experts_of(2).astype(np.uint8)))
    with pytest.raises(RowsError, match="layers and experts"):
        table.extended(RowBlock(8, experts_of(2, layers=3).astype(np.uint8)))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 35))
def test_a_branch_shares_the_first_rows(sizes: list[int], count: int) -> None:
    whole = experts_of(sum(sizes)).astype(np.uint8)
    table, at = RowTable(), 0
    for size in sizes:
        table = table.extended(RowBlock(at, whole[at : at + size]))
        at += size
    branch = table.first(count)
    assert branch.row_count == min(count, at)
    if branch.row_count:
        assert (np.load(io.BytesIO(branch.to_npy())) == whole[:count]).all()


def test_blocks_of_different_types_become_one_file() -> None:
    small, large = experts_of(3).astype(np.uint8), experts_of(2).astype(np.uint16) + 300
    table = RowTable((small, large))
    loaded = np.load(io.BytesIO(b"".join(table.npy_pieces())))
    assert loaded.dtype == np.uint16
    assert (loaded == np.concatenate([small, large])).all()
    assert np.load(io.BytesIO(RowTable().to_npy())).shape == (0, 0, 0)
