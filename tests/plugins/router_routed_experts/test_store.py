from __future__ import annotations

from array import array

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
    entry = None
    for turn in range(10):
        entry = store.add(f"r{turn}", rows(10 * turn, 10 * turn + 10), "w1", parent=entry, start=10 * turn)
    assert (entry.table.row_count, entry.is_complete) == (100, True)
    assert [store.get(f"r{turn}").table.row_count for turn in range(10)] == list(range(10, 101, 10))
    assert store.byte_count == 10 * ENTRY_BYTES + 100 * 8


def test_a_missing_answer_makes_what_follows_incomplete_with_reason_and_worker() -> None:
    store = RowStore()
    first = store.add("a", rows(0, 8), "w1")
    second = store.add("b", MISSING, "w2", parent=first, start=8)
    third = store.add("c", rows(12, 14), "w3", parent=second, start=8)
    assert [entry.is_complete for entry in (first, second, third)] == [True, False, False]
    assert [(complaint.reason, complaint.worker) for complaint in third.complaints] == [
        (Reason.MISSING, "w2"),
        (Reason.GAP, "w3"),
    ]
    assert third.table.row_count == 8


def test_an_abort_without_rows_leaves_it_complete() -> None:
    store = RowStore()
    assert store.add("s", Verdict(), "w").is_complete
    assert store.get("s").table.row_count == 0


def test_rows_that_were_asked_for_from_a_row_on_begin_there() -> None:
    store = RowStore()
    entry = store.add("a", rows(3, 8), "w", start=3)
    assert (entry.is_complete, entry.table.start, entry.table.stop) == (True, 3, 8)
    assert store.add("b", rows(5, 8), "w", start=3).complaints[0].reason is Reason.GAP
    full = store.add("c", rows(0, 8), "w", start=3)
    assert (full.is_complete, full.table.start, full.table.row_count) == (True, 3, 5)
    longer = store.add("d", rows(8, 10), "w", parent=entry, start=8)
    assert (longer.table.start, longer.table.stop) == (3, 10)


def test_a_branch_shares_rows_and_complaints_with_what_it_leaves() -> None:
    store = RowStore()
    first = store.add("a", rows(0, 8), "w1")
    before = store.byte_count
    branch = store.add("b", rows(6, 9), "w1", parent=first, start=6)
    assert branch.table.row_count == 9
    assert store.byte_count == before + ENTRY_BYTES + 3 * 8
    store.discard("a")
    assert store.get("b").table.row_count == 9
    assert store.byte_count == ENTRY_BYTES + 8 * 8 + 3 * 8  # the cut block keeps all it was cut from
    assert not store.add("c", rows(9, 10), "w1", parent=store.add("x", MISSING, "w2", parent=branch, start=9), start=9)\
        .is_complete  # fmt: skip
    for key in "bcx":
        store.discard(key)
    store.discard("unknown")
    assert (store.byte_count, len(store), store._users) == (0, 0, {})


def test_a_parent_that_was_dropped_meanwhile_still_gives_its_rows() -> None:
    store = RowStore()
    parent = store.add("a", rows(0, 8), "w")
    store.discard("a")
    assert store.add("b", rows(8, 10), "w", parent=parent, start=8).table.row_count == 10


def test_a_key_that_is_used_again_names_the_newer_answer_also_where_it_continues_the_older() -> None:
    store = RowStore()
    first = store.add("a", rows(0, 8), "w")
    second = store.add("a", rows(8, 10), "w", parent=first, start=8)
    assert (store.get("a"), second.table.row_count, len(store)) == (second, 10, 1)
    assert store.byte_count == ENTRY_BYTES + 10 * 8
    store.add("a", rows(0, 3), "w")
    assert (store.get("a").table.row_count, store.byte_count) == (3, ENTRY_BYTES + 3 * 8)


def test_ids_are_counted_until_they_are_forgotten() -> None:
    store = RowStore()
    entry = store.add("a", rows(0, 8), "w", token_ids=array("i", range(9)))
    assert store.byte_count == ENTRY_BYTES + 8 * 8 + 9 * 4
    store.forget_tokens("a")
    store.forget_tokens("a")
    store.forget_tokens("unknown")
    assert (entry.token_ids, store.byte_count) == (None, ENTRY_BYTES + 8 * 8)


def test_the_entry_used_longest_ago_goes_first() -> None:
    store = RowStore(max_bytes=3 * (ENTRY_BYTES + 80))
    for key in "abc":
        store.add(key, rows(0, 10), "w")
    store.get("a")
    store.peek("b")
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
