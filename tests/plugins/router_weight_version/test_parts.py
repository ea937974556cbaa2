"""The parts that know no HTTP: versions, pauses, session tags, the scan of answers."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_weight_version.pause import Pauses
from router_weight_version.scan import VersionScanner
from router_weight_version.session_tags import SessionTags
from router_weight_version.version import newest_of, parse_version, why_too_old

numbers = st.integers(0, 10**30)


# ----------------------------------------------------------------------------------------------------------- versions
@given(numbers, numbers)
def test_decimal_texts_compare_as_numbers(first: int, second: int) -> None:
    ahead, behind = parse_version(str(first)), parse_version("0" + str(second))
    assert ahead is not None
    assert behind is not None
    assert (ahead < behind) == (first < second)


@pytest.mark.parametrize("text", [None, "", "default", "v7", "-1", "+1", "1.0", " 1", "1_0", "٣", "²", "1" * 33])
def test_any_other_text_is_unknown(text: str | None) -> None:
    assert parse_version(text) is None


def test_the_newest_is_the_highest_known_one() -> None:
    assert newest_of(["9", "10", "default", None]) == 10
    assert newest_of(["default", None]) is None


@given(st.none() | numbers, st.none() | numbers, st.none() | numbers, st.none() | st.integers(0, 5))
def test_a_worker_fits_exactly_when_its_version_is_within_every_bound(
    version: int | None, tag: int | None, newest: int | None, max_staleness: int | None
) -> None:
    bounds = [tag] if tag is not None else []
    if max_staleness is not None and newest is not None:
        bounds.append(newest - max_staleness)
    fits = not bounds or (version is not None and version >= max(bounds))
    text = None if version is None else str(version)
    found = why_too_old(text, None, tag=tag, newest=newest, max_staleness=max_staleness)
    assert (found is None) == fits
    assert found is None or found[1] is False


def test_a_pending_version_is_what_the_tag_is_compared_with() -> None:
    assert why_too_old("4", "5", tag=5) == (
        "weight version 4, 5 is pending; 5 or newer may serve (the request's tag)",
        True,
    )
    found = why_too_old("4", "5", tag=6)
    assert found is not None
    assert found[1] is False
    assert why_too_old("4", "5", tag=4) is None


# ------------------------------------------------------------------------------------------------------------- pauses
TARGETS = (None, "a", "b")


@given(st.lists(st.tuples(st.sampled_from(("pause", "resume", "decide")), st.sampled_from(TARGETS)), max_size=30))
def test_a_decision_is_void_exactly_when_its_target_or_all_was_paused_since(steps: list[tuple[str, Any]]) -> None:
    pauses = Pauses()
    paused: set[Any] = set()
    decisions: list[tuple[int, str, set[Any], list[Any]]] = []
    for step, target in steps:
        if step == "pause":
            pauses.pause(target, until=1.0)
            paused.add(target)
            for _, _, _, since in decisions:
                since.append(target)
        elif step == "resume":
            assert pauses.resume(target) == (target in paused)
            paused.discard(target)
        else:
            decisions.append((pauses.epoch, target or "a", set(paused), []))
        assert pauses.is_any == bool(paused)
        assert all(pauses.is_paused(target) == (target in paused) for target in TARGETS)
        for epoch, worker, _, since in decisions:
            touched = {None, worker}
            assert pauses.is_void(epoch, worker) == bool(touched & set(since) or touched & paused)


def test_leases_end_in_their_time_and_only_once() -> None:
    pauses = Pauses()
    pauses.pause(None, until=5.0)
    pauses.pause("a", until=3.0)
    assert pauses.next_end() == 3.0
    assert pauses.expire(4.0) == ["a"]
    assert (pauses.is_paused("a"), pauses.is_paused(None), pauses.next_end()) == (False, True, 5.0)
    pauses.pause(None, until=9.0)
    assert pauses.expire(6.0) == []
    pauses.resume(None)
    assert (pauses.expire(10.0), pauses.next_end(), pauses.is_any) == ([], None, False)


# ------------------------------------------------------------------------------------------------------- session tags
def test_the_first_to_serve_a_session_sets_its_version() -> None:
    tags = SessionTags(max_sessions=10, ttl_s=60)
    tags.claim("s", "first", 4, 0.0)
    tags.claim("s", "second", 5, 0.0)
    assert tags.get("s", 0.0) == 4
    assert tags.serve("s", 5, 0.0) == 5
    assert tags.serve("s", 4, 0.0) == 5
    tags.unclaim("s", "first")
    assert tags.get("s", 0.0) == 5


def test_a_claim_ends_with_an_exchange_that_was_not_served() -> None:
    tags = SessionTags(max_sessions=10, ttl_s=60)
    tags.claim("s", "first", 4, 0.0)
    tags.unclaim("s", "another")
    assert tags.get("s", 0.0) == 4
    tags.unclaim("s", "first")
    assert tags.get("s", 0.0) is None


def test_session_tags_are_bounded_in_number_and_time() -> None:
    tags = SessionTags(max_sessions=3, ttl_s=10)
    for at in range(5):
        tags.serve(str(at), at, float(at))
    assert (len(tags), tags.get("1", 4.0), tags.get("2", 4.0)) == (3, None, 2)
    assert tags.get("2", 13.0) is None
    tags.serve("new", 7, 100.0)
    assert len(tags) == 1


# ------------------------------------------------------------------------------------------------------------- scanning
texts = st.text(max_size=20) | st.sampled_from(['"weight_version":"9"', 'weight_version":"8"', '\\"weight_version":'])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=15,
)


def scan(body: bytes, cuts: list[int], max_bytes: int = 1 << 20) -> str | None:
    scanner = VersionScanner(max_bytes)
    places = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    for start, end in itertools.pairwise(places):
        if (found := scanner.feed(body[start:end])) is not None:
            return found
    return None


@given(values, st.integers(0, 10**20), st.lists(st.integers(0, 2000), max_size=6), st.sampled_from((None, 1)))
def test_the_version_is_found_however_the_answer_is_cut(
    text: Any, version: int, cuts: list[int], indent: int | None
) -> None:
    answer = {"text": text, "meta_info": {"id": "x", "weight_version": str(version), "cached_tokens": 0}}
    assert scan(json.dumps(answer, indent=indent).encode(), cuts) == str(version)


@given(values, st.lists(st.integers(0, 2000), max_size=6))
def test_words_of_the_model_are_never_taken_for_a_version(text: Any, cuts: list[int]) -> None:
    assert scan(json.dumps({"text": text, "meta_info": {}}).encode(), cuts) is None


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"weight_version":"default"}', "default"),
        (b'{"weight_version": 12 }', "12"),
        (b'{"weight_version":null,"x":{"weight_version":"3"}}', "3"),
        (b'{"weight_version":["3"]}', None),
        (b'{"weight_version":"' + b"9" * 200 + b'"}', None),
        (b'{"weight_version":"3', None),
        (b'{"weight_version', None),
        (b"\xff\xfe\x00", None),
        (b"", None),
    ],
)
def test_odd_answers_are_scanned_without_harm(body: bytes, found: str | None) -> None:
    assert scan(body, []) == found
    assert scan(body, list(range(len(body)))) == found


def test_no_more_than_the_bound_is_looked_at() -> None:
    body = b" " * 1000 + b'{"weight_version":"3"}'
    assert scan(body, [10, 500], max_bytes=1000) is None
    assert scan(body, [10, 500], max_bytes=1022) == "3"
    scanner = VersionScanner(5)
    scanner.feed(b"123456")
    assert scanner.is_done
