"""Limits, the order of workers, and reservations, without HTTP."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_admission.limits import Full, Limits, first_by_version, kv_usage_in
from router_admission.reservation import BUSY, REFUSED, Asked, Verdict, verdict_of

bounds = st.none() | st.integers(1, 50)
shares = st.none() | st.floats(0.01, 1)


@given(bounds, shares, st.integers(0, 60), st.none() | st.floats(0, 1))
def test_a_worker_is_full_exactly_at_its_bounds(
    per_worker: int | None, max_kv: float | None, inflight: int, kv: float | None
) -> None:
    limits = Limits(per_worker, None, max_kv)
    is_full = (per_worker is not None and inflight >= per_worker) or (
        max_kv is not None and kv is not None and kv >= max_kv
    )
    assert (limits.why_full(inflight, kv) is not None) == is_full
    assert 0.0 <= limits.reserve(inflight, kv) <= 1.0
    assert not is_full or limits.reserve(inflight, kv) == 0.0


@given(
    st.dictionaries(st.sampled_from("abcd"), st.none() | st.just("default") | st.integers(0, 9).map(str)),
    st.none() | st.just("default") | st.integers(0, 9).map(str),
)
def test_untagged_requests_go_to_the_newest_and_tagged_ones_to_the_oldest_that_will_do(
    versions: dict[str, str | None], tag: str | None
) -> None:
    first = first_by_version(versions, tag)
    known = {name: int(text) for name, text in versions.items() if text not in (None, "default")}
    if tag not in (None, "default"):
        known = {name: number for name, number in known.items() if number >= int(tag or 0)}
        assert first == {name for name, number in known.items() if number == min(known.values())}
    else:
        assert first == {name for name, number in known.items() if number == max(known.values())}


def test_the_first_of_the_names_counts() -> None:
    assert kv_usage_in({"b": 0.5, "a": 0.25, "c": 1.0}, ["x", "a", "b"]) == 0.25
    assert kv_usage_in({}, ["a"]) is None


@pytest.mark.parametrize(
    ("status", "body", "verdict"),
    [
        (200, None, Verdict.ADMITTED),
        (204, {"admitted": True}, Verdict.ADMITTED),
        (200, {"admitted": False}, Verdict.REFUSED),
        (200, [1], Verdict.ADMITTED),
        (302, None, Verdict.REFUSED),
        (429, None, Verdict.REFUSED),
        (503, {"admitted": True}, Verdict.REFUSED),
        (0, None, Verdict.FAILED),
    ],
)
def test_what_the_answer_of_a_reserve_call_means(status: int, body: object, verdict: Verdict) -> None:
    assert verdict_of(status, body) is verdict


def test_a_worker_that_refused_is_not_asked_for_a_while_nor_by_too_many_at_once() -> None:
    asked = Asked(max_under_way=2, refused_until=5.0)
    assert asked.why_not_now(4.9) == REFUSED
    assert asked.why_not_now(5.0) is None
    asked.under_way = 2
    assert asked.why_not_now(5.0) == BUSY


def test_no_bound_is_none() -> None:
    assert Limits().is_any is False
    assert Limits(max_inflight=1).is_any is True
    assert Limits(1).why_full(1, None) is Full.WORKER
