from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_core import MemberStripper

KEYS = ("experts", "logprobs", "n")

NASTY = ['"experts"', '"experts":"AAAA"', '\\"n\\":1', "\\", ',"n":', '{"logprobs":', ", ", ',"', '{"', "n"]
strings = st.one_of(st.sampled_from(NASTY), st.text(max_size=4), st.lists(st.sampled_from(NASTY)).map("".join))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), strings),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(strings, st.sampled_from(KEYS)), inner, max_size=4)
    ),
    max_leaves=14,
)


def cut(body: bytes, sizes: list[int]) -> list[bytes]:
    chunks, at = [], 0
    for size in sizes:
        chunks.append(body[at : at + size])
        at += size
    return [*chunks, body[at:]]


def stripped(chunks: list[bytes], *keys: bytes) -> bytes:
    stripper = MemberStripper(*(keys or [key.encode() for key in KEYS]))
    return b"".join([*(stripper.feed(chunk) for chunk in chunks), stripper.rest()])


def without(value: object) -> object:
    if isinstance(value, list):
        return [without(part) for part in value]
    if isinstance(value, dict):
        return {key: without(part) for key, part in value.items() if key not in KEYS}
    return value


@given(values, st.lists(st.integers(0, 7), max_size=60), st.sampled_from([(",", ":"), (", ", ": "), (" ,\n ", "\t:")]))
def test_a_body_cut_anywhere_loses_the_members_and_nothing_else(answer, sizes, separators) -> None:
    body = json.dumps([answer], separators=separators).encode()
    assert json.loads(stripped(cut(body, sizes))) == without([answer])


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (b'{"a" :1e-05, "n":[1,{"n":"]"}] ,"b":2}', b'{"a" :1e-05 ,"b":2}'),
        (b'{ "n":"x", "b":2}', b'{ "b":2}'),
        (b'{"n":1,"experts":null,"logprobs":{}}', b"{}"),
        (b'data: {"a":1,"n":true}\n\ndata: {"n":-1.5,"a":2}\n\n', b'data: {"a":1}\n\ndata: {"a":2}\n\n'),
        (b'{"a":"\\"n\\":1","b":"n"}', b'{"a":"\\"n\\":1","b":"n"}'),
    ],
)
def test_every_other_byte_passes_as_it_came_whatever_the_cuts(body: bytes, left: bytes) -> None:
    for size in range(1, len(body) + 1):
        assert stripped([body[at : at + size] for at in range(0, len(body), size)]) == left


def test_a_chunk_without_the_members_is_the_same_object() -> None:
    stripper = MemberStripper(b"n")
    chunk = b'data: {"a": 1, "b": "n"}\n\n'
    assert stripper.feed(chunk) is chunk


def test_a_whole_event_is_never_held_back() -> None:
    stripper = MemberStripper(b"n")
    for event in (b'data: {"a":{}}\n\n', b'data: {"n":1}\n\n', b"data: [DONE]\n\n", b'data: {"a":", "}\n\n'):
        assert stripper.feed(event).endswith(event[-1:])
        assert stripper.rest() == b""


def test_what_is_held_at_the_end_is_given_back() -> None:
    assert stripped([b'{"a":1, "n'], b"n") == b'{"a":1, "n'


def test_a_large_value_is_not_kept() -> None:
    stripper = MemberStripper(b"n")
    assert stripper.feed(b'{"a":1,"n":"') == b'{"a":1'
    for _ in range(100):
        assert stripper.feed(b"A" * 1000) == b""
    assert stripper.feed(b'","b":2}') == b',"b":2}'
