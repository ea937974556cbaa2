"""What headers ask for, and how a wrong one is refused by its name."""

from __future__ import annotations

import pytest
from router_session_affinity.wish import NO_WISH, Pin, Wish, read_wish

from router_core import Headers, Reject


def wish_of(*, pins_are_hard: bool = False, **fields: str) -> Wish:
    pairs = [(f"x-{name.replace('_', '-')}".encode(), value.encode("latin-1")) for name, value in fields.items()]
    return read_wish(Headers([(b"content-type", b"application/json"), *pairs]), pins_are_hard=pins_are_hard)


def test_no_header_asks_for_nothing() -> None:
    assert wish_of() is NO_WISH


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("1", True), ("false", False), ("0", False)]
)
def test_stickiness_is_a_boolean(text: str, value: bool) -> None:
    assert wish_of(is_sticky=text) == Wish(None, value)


def test_a_pin_has_a_worker_a_rank_and_a_strength() -> None:
    assert wish_of(base_worker_id="w-1").pin == Pin("w-1", None, is_hard=False, is_once=False)
    pinned = wish_of(base_worker_id="http://h:1", target_dp_rank="3", hard_pin="true", force_pin_once="true")
    assert pinned.pin == Pin("http://h:1", 3, is_hard=True, is_once=True)


def test_the_setting_says_how_hard_a_pin_is_where_the_request_does_not() -> None:
    assert wish_of(base_worker_id="w-1", pins_are_hard=True).pin == Pin("w-1", None, is_hard=True, is_once=False)
    soft = wish_of(base_worker_id="w-1", hard_pin="false", pins_are_hard=True)
    assert soft.pin == Pin("w-1", None, is_hard=False, is_once=False)


@pytest.mark.parametrize(
    ("fields", "header"),
    [
        ({"is_sticky": "yes"}, "x-is-sticky"),
        ({"is_sticky": ""}, "x-is-sticky"),
        ({"base_worker_id": ""}, "x-base-worker-id"),
        ({"base_worker_id": "a b"}, "x-base-worker-id"),
        ({"base_worker_id": "w" * 3000}, "x-base-worker-id"),
        ({"base_worker_id": "w\xff"}, "x-base-worker-id"),
        ({"base_worker_id": "w", "target_dp_rank": "-1"}, "x-target-dp-rank"),
        ({"base_worker_id": "w", "target_dp_rank": "one"}, "x-target-dp-rank"),
        ({"base_worker_id": "w", "target_dp_rank": "1.0"}, "x-target-dp-rank"),
        ({"base_worker_id": "w", "target_dp_rank": "12345678"}, "x-target-dp-rank"),
        ({"base_worker_id": "w", "force_pin_once": "maybe"}, "x-force-pin-once"),
        ({"base_worker_id": "w", "hard_pin": "2"}, "x-hard-pin"),
        ({"target_dp_rank": "1"}, "x-target-dp-rank"),
        ({"force_pin_once": "true"}, "x-force-pin-once"),
        ({"hard_pin": "true"}, "x-hard-pin"),
    ],
)
def test_a_wrong_header_is_refused_by_its_name(fields: dict[str, str], header: str) -> None:
    with pytest.raises(Reject) as refused:
        wish_of(**fields)
    assert (refused.value.status, refused.value.param) == (400, header)
    assert header in refused.value.message


def test_a_pin_that_is_not_asked_for_needs_no_worker() -> None:
    assert wish_of(force_pin_once="false", hard_pin="false").pin is None
