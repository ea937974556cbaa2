from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_core import ValueScanner

KEY = "routed_experts"


def dumped(answer: object) -> bytes:
    """Compact, as the workers' JSON is."""
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()


def generate_answer(value: object, text: str = "hi") -> dict[str, object]:
    return {"text": text, "output_ids": [1, 2], "meta_info": {"id": "r1", "routed_experts": value}}


def events(*answers: object) -> bytes:
    return b"".join(b"data: " + dumped(answer) + b"\n\n" for answer in answers) + b"data: [DONE]\n\n"


NASTY = [
    '"routed_experts"',
    '"routed_experts":"AAAA"',
    '\\"routed_experts\\":"x"',
    "\\",
    '\\"',
    KEY,
    '{"routed_experts":',
]

strings = st.one_of(
    st.sampled_from(NASTY), st.text(max_size=6), st.lists(st.sampled_from(NASTY), max_size=3).map("".join)
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), strings),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(strings, st.just(KEY)), inner, max_size=3)
    ),
    max_leaves=12,
)


def cut(body: bytes, sizes: list[int]) -> list[bytes]:
    chunks, at = [], 0
    for size in sizes:
        chunks.append(body[at : at + size])
        at += size
    return [*chunks, body[at:]]


def scanned(chunks: list[bytes], **options) -> ValueScanner:
    scanner = ValueScanner(KEY.encode(), **options)
    for chunk in chunks:
        scanner.feed(chunk)
    return scanner


def without_values(answer: object, taken: list[object]) -> object:
    """The brute-force answer: every string, object or array under the key is taken, outermost first, in order."""
    if isinstance(answer, list):
        return [without_values(part, taken) for part in answer]
    if not isinstance(answer, dict):
        return answer
    rest = {}
    for key, value in answer.items():
        if key == KEY and isinstance(value, str | dict | list):
            rest[key] = str(len(taken))
            taken.append(value)
        else:
            rest[key] = without_values(value, taken)
    return rest


def value_of(found, body: bytes) -> object:
    text = found.sink.joined()
    assert text == body[found.start : found.stop]
    return json.loads(b'"' + text + b'"' if found.is_string else text)


@settings(max_examples=300, deadline=None)
@given(values, st.lists(st.integers(0, 7), max_size=60), st.booleans(), st.sampled_from([(",", ":"), (", ", " : ")]))
def test_a_json_body_cut_anywhere_loses_its_values_and_nothing_else(answer, sizes, is_ascii, separators) -> None:
    body = json.dumps(answer, ensure_ascii=is_ascii, separators=separators).encode("utf-8", "surrogatepass")
    scanner = scanned(cut(body, sizes))
    taken: list[object] = []
    assert json.loads(scanner.rest_bytes()) == without_values(answer, taken)
    assert [value_of(found, body) for found in scanner.values] == taken
    assert not scanner.is_inside


def test_a_name_behind_a_backslash_that_ended_the_last_chunk_is_no_key() -> None:
    body = json.dumps({f'a"{KEY}': [1]}).encode()
    at = body.index(KEY.encode()) - 1
    scanner = scanned([body[:at], body[at:]])
    assert body[at - 1 : at] == b"\\"
    assert (scanner.values, scanner.rest_bytes()) == ([], body)


@settings(max_examples=200, deadline=None)
@given(values, st.lists(st.integers(0, 7), max_size=60))
def test_a_replacement_stands_in_for_the_whole_value(answer, sizes) -> None:
    body = dumped(answer).decode("utf-8", "replace").encode()  # halves of characters are no JSON to read back
    scanner = ValueScanner(KEY.encode(), replacement=b"null")
    sent = b""
    for chunk in cut(body, sizes):
        scanner.feed(chunk)
        sent += b"".join(scanner.drain())
    assert scanner.rest == []

    def nulled(part):
        if isinstance(part, list):
            return [nulled(inner) for inner in part]
        if not isinstance(part, dict):
            return part
        return {
            key: None if key == KEY and isinstance(value, str | dict | list) else nulled(value)
            for key, value in part.items()
        }

    assert json.loads(sent) == nulled(json.loads(body))


def test_a_body_without_the_key_passes_as_it_came() -> None:
    body = dumped({"text": '"routed_experts":"AAAA" and \\"routed_experts\\"', "n": "routed_experts"})
    chunk = [body[:9], body[9:]]
    scanner = scanned(chunk)
    assert scanner.values == []
    assert scanner.rest_bytes() == body
    assert all(piece.obj is given for piece, given in zip(scanner.rest, chunk, strict=True))


def test_the_key_in_a_text_is_not_taken_and_the_one_behind_it_is() -> None:
    answer = generate_answer("QUJD", text='she said {"routed_experts": "AAAA"} and \\"routed_experts\\":"')
    body = dumped(answer)
    for size in range(1, len(body)):
        scanner = scanned([body[at : at + size] for at in range(0, len(body), size)])
        assert [found.sink.joined() for found in scanner.values] == [b"QUJD"]
        assert json.loads(scanner.rest_bytes())["meta_info"]["routed_experts"] == "0"


def test_the_pieces_of_a_value_refer_to_the_chunks_that_came() -> None:
    body = dumped(generate_answer("A" * 1000))
    chunks = [body[at : at + 100] for at in range(0, len(body), 100)]
    found = scanned(chunks).values[0]
    assert all(any(piece.obj is chunk for chunk in chunks) for piece in found.sink.pieces)
    assert found.sink.joined() == b"A" * 1000


@pytest.mark.parametrize("value", [b"null", b"12", b"true", b"-1.5"])
def test_a_value_that_is_no_text_stays_where_it_is(value: bytes) -> None:
    body = b'{"routed_experts" : ' + value + b', "a": "\\"routed_experts\\""}'
    for size in range(1, len(body)):
        scanner = scanned([body[at : at + size] for at in range(0, len(body), size)])
        assert (scanner.values, scanner.rest_bytes()) == ([], body)


def test_values_in_the_events_of_a_stream_are_found_in_order() -> None:
    body = events(generate_answer(None), generate_answer("QUJD"), generate_answer({"data": "REVG", "shape": [1, 1, 3]}))
    for size in range(1, 80):
        scanner = scanned([body[at : at + size] for at in range(0, len(body), size)])
        assert [found.is_string for found in scanner.values] == [True, False]
        assert body[scanner.values[0].start : scanner.values[0].stop] == b"QUJD"
        assert b'"routed_experts":"1"' in scanner.rest_bytes()


def test_a_body_that_breaks_off_within_a_value_says_so() -> None:
    for body in (b'{"routed_experts":"AAA', b'{"routed_experts":{"data":"AA"', b'{"routed_experts":"AA\\"'):
        scanner = scanned([body])
        assert scanner.is_inside
        assert scanner.values[0].stop is None


def test_several_keys_are_found_whatever_their_lengths_and_the_cuts() -> None:
    body = b'{"a":"1","longest_key":[2],"text":"\\"a\\":","bc":{"a":4},"n":5}'
    for size in range(1, len(body) + 1):
        scanner = ValueScanner(b"a", b"longest_key", b"bc", b"n")
        for at in range(0, len(body), size):
            scanner.feed(body[at : at + size])
        assert [found.sink.joined() for found in scanner.values] == [b"1", b"[2]", b'{"a":4}']


def test_numbers_and_nulls_are_replaced_where_that_is_asked_for() -> None:
    body = b'{"n" : -1.5e3 ,"m":null,"a":[true,{"n":false}],"n":"x"}'
    for size in range(1, len(body) + 1):
        scanner = ValueScanner(b"n", b"m", replacement=b"0", takes_scalars=True)
        for at in range(0, len(body), size):
            scanner.feed(body[at : at + size])
        assert scanner.rest_bytes() == b'{"n" : 0 ,"m":0,"a":[true,{"n":0}],"n":0}'
        assert [found.sink.joined() for found in scanner.values] == [b"-1.5e3", b"null", b"false", b"x"]
