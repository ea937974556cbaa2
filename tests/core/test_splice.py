"""One key of a JSON object is set; every other byte stays."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_core.splice import is_object, set_top_level_key, top_level_spans

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(["a", "stream", "ключ", 'quo"te', "back\\slash", "", "{", "a:b"])
SPACES = st.text(alphabet=" \t\r\n", max_size=100)


@given(
    body=st.dictionaries(KEYS | st.text(max_size=6), JSON_VALUES, max_size=5),
    name=KEYS,
    value=JSON_VALUES,
    before=SPACES,
    after=SPACES,
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
)
def test_the_object_is_the_same_but_for_the_key(
    body: dict[str, object], name: str, value: object, before: str, after: str, indent: int | None, ascii_only: bool
) -> None:
    text = (before + json.dumps(body, indent=indent, ensure_ascii=ascii_only) + after).encode("utf-8", "surrogatepass")
    changed = set_top_level_key(text, name, json.dumps(value).encode())
    assert json.loads(changed.decode("utf-8", "surrogatepass")) == {**body, name: value}


@given(st.lists(st.tuples(KEYS, JSON_VALUES), max_size=6), KEYS)
def test_bytes_outside_the_value_are_not_touched(pairs: list[tuple[str, object]], name: str) -> None:
    text = "{" + ", ".join(f"{json.dumps(key)} :  {json.dumps(value)}" for key, value in pairs) + " }"
    parts = text.encode()
    spans = top_level_spans(parts, name)
    assert [json.loads(parts[start:end]) for start, end in spans] == [value for key, value in pairs if key == name]
    marked = set_top_level_key(parts, name, b"<new>")
    if spans:
        kept = b"<new>".join(_outside(parts, spans))
        assert marked == kept
    else:
        assert marked.startswith(parts.rstrip(b"} "))


def _outside(body: bytes, spans: list[tuple[int, int]]) -> list[bytes]:
    edges = [0, *(edge for span in spans for edge in span), len(body)]
    return [body[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]


@given(st.binary(max_size=80), st.sampled_from([b"{", b"", b'{"a":']), st.sampled_from([b"}", b"", b'"}']))
def test_no_bytes_make_it_raise_or_change_what_is_no_object(middle: bytes, start: bytes, end: bytes) -> None:
    body = start + middle + end
    changed = set_top_level_key(body, "a", b"1")
    if not is_object(body):
        assert changed == body


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        (b"{}", b'{"a": 1}'),
        (b"{ }\n", b'{"a": 1}\n'),
        (b'{"b":2}', b'{"b":2, "a": 1}'),
        (b'{"a":2,"a" : {"a":3}, "x":{"a":4}}', b'{"a":1,"a" : 1, "x":{"a":4}}'),
        (b'{"x":"\\"a\\":7","a":[1,"]"]}', b'{"x":"\\"a\\":7","a":1}'),
        (b'{"\\u0061":2}', b'{"\\u0061":2, "a": 1}'),
        (b'{"a":NaN}', b'{"a":1}'),
        (b'{"a":"\xff\xfe"}', b'{"a":1}'),
        (b"[1]", b"[1]"),
        (b"", b""),
        (b"{", b"{"),
        (b'"{}"', b'"{}"'),
    ],
)
def test_examples(body: bytes, changed: bytes) -> None:
    assert set_top_level_key(body, "a", b"1") == changed


def test_leading_white_space_hides_no_object() -> None:
    assert set_top_level_key(b" " * 1000 + b"{}" + b"\n" * 1000, "a", b"1").strip() == b'{"a": 1}'


@pytest.mark.parametrize("text", ['"a"', '"a[b"', '""', '"\\\\"', "{}", '{"a": "b"}', "1"])
@pytest.mark.parametrize("times", [499, 500, 501, 1001, 5000])
@pytest.mark.parametrize("last", ["", ", [[1], 2]"])
def test_a_value_of_many_texts_ends_where_it_ends(text: str, times: int, last: str) -> None:
    value = "[" + ", ".join([text] * times) + last + "]"
    assert set_top_level_key(b'{"text": %b, "b": 1}' % value.encode(), "text", b"0") == b'{"text": 0, "b": 1}'


@pytest.mark.parametrize("times", [30, 1000, 20_000])
@pytest.mark.parametrize("end", [b'"}', b'", }', b"}"])
def test_a_value_without_an_end_takes_no_longer(times: int, end: bytes) -> None:
    """To cut its texts in every way would take for ever."""
    assert set_top_level_key(b'{"text": [' + b'"a", ' * times + end, "text", b"0") == b'{"text": 0'


@pytest.mark.parametrize("value", ["[[[]]]", "[[[1]], 2]", '{"text": [[]]}', '{"a": {"b": {"c": [{}]}}}', '[[["]"]]]'])
@pytest.mark.parametrize("times", [1, 3, 999, 1000, 1001, 2500])
def test_values_in_values_are_passed_over(value: str, times: int) -> None:
    """Python before 3.11.5 does not go back in a possessive pattern that fails half way."""
    nested = "[" + ", ".join([value] * times) + "]"
    assert set_top_level_key(b'{"text": %b, "b": 1}' % nested.encode(), "text", b"0") == b'{"text": 0, "b": 1}'


@pytest.mark.parametrize("piece", [b'\\"', b'"', b"{", b"[", b'"{', b"\\"])
def test_a_malformed_body_costs_linear_time(piece: bytes) -> None:
    """Quadratic time would not end before the suite's timeout."""
    body = b'{"a":1,"' + piece * 1_000_000 + b"}"
    assert set_top_level_key(body, "a", b"2").startswith(b'{"a":2,"')


def test_a_long_string_is_passed_over_in_one_step() -> None:
    long = b'{"image":"' + b"A" * (32 << 20) + b'","a":1}'
    assert set_top_level_key(long, "a", b"2").endswith(b'","a":2}')


def test_a_key_that_also_stands_in_every_message_is_set_at_the_top_alone() -> None:
    message = {"text": 'a "text": 1, \\"text\\": {[', "parts": [{"text": ["text", {}]}, "text"]}
    body = {"messages": [message] * 50, "text": {"deep": [[{"text": "}"}]]}, "last": message}
    spliced = set_top_level_key(json.dumps(body).encode(), "text", b"7")
    assert json.loads(spliced) == {**body, "text": 7}
