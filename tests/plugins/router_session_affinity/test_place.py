"""Where a session goes: its own worker, away from an overloaded one, or a new place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_session_affinity.place import LEAVES, PLACED, STAYS, Gate, Place, place, place_by_hash
from router_session_affinity.ring import HashRing

from router_core import Worker

GATE = Gate(absolute=4, relative=1.5)


def workers_with(*inflight: int) -> list[Worker]:
    workers = []
    for number, count in enumerate(inflight):
        url = f"http://10.0.0.{number}:30000"
        worker = Worker(
            id=f"w-{number}", base_id=f"w-{number}", url=url, key=url, base_url=url, dp_rank=None, generation=1
        )
        worker.count(count)
        workers.append(worker)
    return workers


def hashed(key: str, candidates: list[Worker], workers: list[Worker]) -> Place:
    """The place of a key when all of ``workers`` are registered."""
    ring = HashRing(64)
    for worker in workers:
        ring.add(worker.key)
    return place_by_hash(key, candidates, GATE, ring, {worker.key: worker for worker in workers})


def test_a_session_stays_with_its_worker_while_both_bounds_hold() -> None:
    for loads in ((4, 0), (12, 8), (30, 20), (5, 4)):
        own, other = workers_with(*loads)
        found = place(own, [own, other], GATE, lambda worker: 0)
        assert (found.worker, found.score, found.why) == (own, STAYS, "stays")


def test_a_session_leaves_an_overloaded_worker_for_the_least_loaded() -> None:
    own, middle, least = workers_with(14, 9, 8)
    found = place(own, [own, middle, least], GATE, lambda worker: 0)
    assert (found.worker, found.score, found.why) == (least, LEAVES, "overloaded")


@pytest.mark.parametrize(
    ("inflight", "least", "is_overloaded"),
    [(4, 0, False), (5, 0, True), (25, 20, False), (30, 20, False), (31, 20, True), (0, 0, False)],
)
def test_an_overload_is_absolutely_and_relatively_more(inflight: int, least: int, is_overloaded: bool) -> None:
    workers = workers_with(inflight, least)
    assert GATE.is_overloaded(workers[0], workers) is is_overloaded


def test_a_new_session_goes_where_the_fewest_sessions_are_then_the_fewest_requests() -> None:
    first, second, third = workers_with(0, 5, 2)
    sessions = {first: 3, second: 1, third: 1}
    found = place(None, [first, second, third], GATE, lambda worker: sessions[worker])
    assert (found.worker, found.score, found.why) == (third, PLACED, "lost")


def test_a_session_whose_worker_is_no_candidate_gets_a_new_place() -> None:
    gone, first, second = workers_with(0, 1, 0)
    assert place(gone, [first, second], GATE, lambda worker: 0).worker is second


def test_a_place_is_taken_at_once_so_that_a_burst_spreads() -> None:
    workers = workers_with(0, 0, 0, 0)
    sessions = dict.fromkeys(workers, 0)
    for _ in range(40):
        sessions[place(None, workers, GATE, lambda worker: sessions[worker]).worker] += 1
    assert set(sessions.values()) == {10}


keys = st.text(max_size=20)


@given(key=keys, out=st.sets(st.integers(0, 5), max_size=5))
def test_a_hashed_key_moves_only_when_its_own_worker_is_out(key: str, out: set[int]) -> None:
    workers = workers_with(0, 0, 0, 0, 0, 0)
    own = hashed(key, workers, workers).worker
    left = [worker for number, worker in enumerate(workers) if number not in out]
    found = hashed(key, left, workers)
    assert found.worker in left
    if own in left:
        assert (found.worker, found.score, found.why) == (own, STAYS, "stays")


@given(key=keys, loads=st.lists(st.integers(0, 40), min_size=6, max_size=6))
def test_a_hashed_key_is_never_given_to_an_overloaded_worker(key: str, loads: list[int]) -> None:
    workers = workers_with(*loads)
    chosen = hashed(key, workers, workers).worker
    assert not GATE.is_overloaded(chosen, workers)


def test_workers_that_the_ring_does_not_know_are_taken_by_load() -> None:
    first, second = workers_with(3, 1)
    assert place_by_hash("k", [first, second], GATE, HashRing(8), {}).worker is second
