from __future__ import annotations

import numpy as np
from router_routed_experts.reasons import Reason
from router_routed_experts.rows import RowBlock, Verdict
from router_routed_experts.store import ENTRY_BYTES, RowStore

from .answers import experts_of

MISSING = Verdict(reason=Reason.MISSING, detail="none came")


def rows(start: int, stop: int) -> Verdict:
    return Verdict(RowBlock(start, experts_of(stop - start).astype(np.uint8)))


def test_a_trajectory_grows_by_its_new_rows_and_costs_its_length_once() -> None:
    store = RowStore()
    for turn in range(10):
        store.add("s", rows(10 * turn, 10 * turn + 10), "w1")
    entry = store.get("s")
    assert (entry.table.row_count, entry.is_complete) == (100, True)
    assert store.byte_count == ENTRY_BYTES + 100 * 8


def test_a_missing_answer_makes_it_incomplete_with_reason_and_worker() -> None:
    store = RowStore()
    store.add("s", rows(0, 8), "w1")
    store.add("s", MISSING, "w2")
    entry = store.add("s", rows(12, 14), "w3")
    assert not entry.is_complete
    assert [(complaint.reason, complaint.worker) for complaint in entry.complaints] == [
        (Reason.MISSING, "w2"),
        (Reason.GAP, "w3"),
    ]
    assert entry.table.row_count == 8


def test_an_abort_without_rows_leaves_it_complete() -> None:
    store = RowStore()
    assert store.add("s", Verdict(), "w").is_complete
    assert store.get("s").table.row_count == 0


def test_a_branch_shares_rows_and_complaints_with_what_it_leaves() -> None:
    store = RowStore()
    store.add("a", rows(0, 8), "w1")
    before = store.byte_count
    branch = store.add("b", rows(6, 9), "w1", parent="a", row_count=6)
    assert branch.table.row_count == 9
    assert store.byte_count == before + ENTRY_BYTES + 3 * 8
    store.discard("a")
    assert store.get("b").table.row_count == 9
    assert store.byte_count == ENTRY_BYTES + 8 * 8 + 3 * 8  # the cut block keeps all it was cut from
    store.add("b", MISSING, "w2")
    assert not store.add("c", rows(9, 10), "w1", parent="b", row_count=9).is_complete
    for key in "bc":
        store.discard(key)
    store.discard("unknown")
    assert (store.byte_count, len(store), store._users) == (0, 0, {})


def test_the_entry_used_longest_ago_goes_first() -> None:
    store = RowStore(max_bytes=3 * (ENTRY_BYTES + 80))
    for key in "abc":
        store.add(key, rows(0, 10), "w")
    store.get("a")
    store.add("d", rows(0, 10), "w")
    assert [store.get(key) is not None for key in "abcd"] == [True, False, True, True]
    assert store.dropped == 1


def test_an_entry_goes_after_its_time() -> None:
    now = [0.0]
    store = RowStore(ttl_s=10.0, clock=lambda: now[0])
    store.add("a", rows(0, 10), "w")
    now[0] = 5.0
    store.add("b", rows(0, 10), "w")
    now[0] = 11.0
    assert (store.get("a"), store.get("b") is not None) == (None, True)
