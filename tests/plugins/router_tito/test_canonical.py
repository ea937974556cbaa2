from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_tito.canonical import canonical_json, canonical_message, is_plain, parse_json
from router_tito.errors import MessageError

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def canonical(text: str) -> str:
    return canonical_json(parse_json(text))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("1", "1.0"),
        ("1", "1e0"),
        ("100", "1E+2"),
        ("0", "-0.0"),
        ("0.1", "0.10"),
        ("1.5e-3", "0.0015"),
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}'),
        ('"\\u00e9"', '"é"'),
    ],
)
def test_one_json_value_has_one_text(left: str, right: str) -> None:
    assert canonical(left) == canonical(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("1", "true"),
        ("0", "false"),
        ("1", '"1"'),
        ("1", '"1e0"'),
        ("null", '"null"'),
        ("9007199254740992", "9007199254740993"),
        ("0.1", "0.1000000000000000055511151231257827"),
        ("[1, 2]", "[2, 1]"),
        ("{}", "[]"),
        ('{"a": null}', "{}"),
        ('"\u00e9"', '"e\u0301"'),
    ],
)
def test_two_json_values_have_two_texts(left: str, right: str) -> None:
    assert canonical(left) != canonical(right)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "NaN", "-Infinity", "", "{", "{} {}", '{"a": {"b": 1, "b": 1}}'])
def test_text_without_a_single_json_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_a_number_of_ten_thousand_digits_is_kept_exactly() -> None:
    digits = "7" * 10_000
    assert canonical(digits) == digits + "e0"


@given(NUMBERS, NUMBERS)
def test_numbers_are_equal_by_value(left: float, right: float) -> None:
    assert (canonical_json(left) == canonical_json(right)) == (Decimal(repr(left)) == Decimal(repr(right)))


@given(VALUES)
def test_writing_a_value_and_reading_it_again_changes_nothing(value: Any) -> None:
    assert canonical(json.dumps(value, indent=1, ensure_ascii=False)) == canonical_json(value)
    assert canonical(json.dumps(value, sort_keys=True, separators=(",", ":"))) == canonical_json(value)


@given(VALUES)
def test_a_plain_value_has_no_number_in_it(value: Any) -> None:
    has_number = any(character.isdigit() for character in json.dumps(_blank(value)))
    assert is_plain(value) == (not has_number and "true" not in json.dumps(_blank(value)).replace("false", "true"))


def _blank(value: Any) -> Any:
    """The value with all its texts emptied."""
    if isinstance(value, str):
        return ""
    if isinstance(value, dict):
        return {"k" * index: _blank(item) for index, item in enumerate(value.values())}
    return [_blank(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": ""},
        {"role": "assistant"},
        {"role": "assistant", "content": [], "tool_calls": []},
        {"role": "assistant", "tool_calls": None, "refusal": None, "function_call": None, "reasoning": ""},
        {"role": "assistant", "audio_tokens": 5, "annotations": []},
    ],
)
def test_null_empty_and_absent_are_one(message: dict[str, Any]) -> None:
    assert canonical_message(message) == {"role": "assistant"}


def test_text_parts_are_their_text_and_others_stay() -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    parts = [{"type": "text", "text": "a"}, "b", image, {"type": "output_text", "text": "c"}]
    assert canonical_message({"role": "user", "content": parts[:2]})["content"] == "ab"
    assert canonical_message({"role": "user", "content": parts})["content"] == ["ab", image, "c"]


def test_a_flat_tool_call_is_the_nested_one() -> None:
    nested = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}]}
    flat = {"role": "assistant", "tool_calls": [{"id": "1", "name": "f", "index": 0}]}
    assert canonical_message(nested) == canonical_message(flat)


@pytest.mark.parametrize(
    "message",
    [[], {}, {"role": 3}, {"role": ""}, {"role": "assistant", "tool_calls": "x"}, {"role": "user", "tool_calls": [1]}],
)
def test_a_message_that_cannot_be_read_is_refused(message: Any) -> None:
    with pytest.raises(MessageError):
        canonical_message(message)


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(MessageError, match="set is not a JSON value"):
        canonical_json({"a": {1}})
    with pytest.raises(MessageError, match="key"):
        canonical_json({1: "a"})
