from __future__ import annotations

from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from router_routed_experts.rows import RowBlock, Verdict
from router_routed_experts.sessions import MAX_BRANCHES, SessionRows, shared_start
from router_routed_experts.store import RowStore

from .answers import experts_of


class Kept:
    def __init__(self, **options) -> None:
        self.store = RowStore()
        self.sessions = SessionRows(self.store, **{"max_sessions": 10, **options})

    def add(self, key: str, ids: list[int], session: str = "s") -> None:
        packed = array("i", ids)
        continued = self.sessions.find(session, packed)
        block = RowBlock(0, experts_of(len(ids) - 1).astype(np.uint8))
        self.store.add(key, Verdict(block), "w", token_ids=packed)
        self.sessions.add(session, key, continued)

    def find(self, ids: list[int], session: str = "s") -> tuple[str, int, bool] | None:
        found = self.sessions.find(session, array("i", ids))
        return (found.key, found.stop, found.is_whole) if found else None


def test_a_prompt_continues_the_trajectory_it_shares_the_most_with() -> None:
    kept = Kept()
    kept.add("a", [1, 2, 3, 4])
    kept.add("b", [1, 2, 9, 9, 9])
    assert kept.find([1, 2, 3, 4, 5]) == ("a", 3, True)  # the last token of it has no row yet
    assert kept.find([1, 2, 9, 9, 5]) == ("b", 4, False)
    assert kept.find([1, 2, 3, 7]) == ("a", 3, False)
    assert kept.find([7, 1, 2]) is None
    assert kept.find([1, 2, 3, 4, 5], "other") is None


def test_a_trajectory_that_is_continued_whole_goes_on_no_more_by_itself() -> None:
    kept = Kept()
    kept.add("a", [1, 2, 3])
    kept.add("b", [1, 2, 3, 4, 5])
    assert kept.sessions.keys("s") == ["b"]
    assert kept.store.peek("a").token_ids is None
    kept.add("c", [1, 2, 9])
    assert kept.sessions.keys("s") == ["b", "c"]


def test_a_key_that_is_used_for_each_turn_stays_one() -> None:
    kept = Kept()
    for length in (3, 5, 7):
        kept.add("a", list(range(length)))
    assert kept.sessions.keys("s") == ["a"]
    assert kept.find(list(range(9))) == ("a", 6, True)


def test_what_the_store_dropped_is_not_continued() -> None:
    kept = Kept()
    kept.add("a", [1, 2, 3])
    kept.store.discard("a")
    assert kept.find([1, 2, 3, 4]) is None


def test_sessions_and_their_branches_are_bounded_and_forgotten() -> None:
    kept = Kept(max_sessions=2)
    for number in range(MAX_BRANCHES + 3):
        kept.add(f"a{number}", [number, 1, 1])
    assert len(kept.sessions.keys("s")) == MAX_BRANCHES
    kept.add("b", [1, 2], "t")
    kept.add("c", [1, 2], "u")
    assert (len(kept.sessions), kept.sessions.keys("s")) == (2, [])
    kept.sessions.forget("t")
    assert kept.find([1, 2, 3], "t") is None


@given(st.lists(st.integers(0, 2), max_size=8), st.lists(st.integers(0, 2), max_size=8))
def test_the_shared_start_is_counted_token_by_token(first: list[int], second: list[int]) -> None:
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    assert shared_start(array("i", first), array("i", second)) == shared
