from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_radix_cache.ends import decoded_ends, sampled_ends

STOP = 9


def ends(text: str, pieces: list[bytes | None], ids: list[int] | None = None) -> list[int]:
    return sampled_ends(text, ids or list(range(100, 100 + len(pieces))), pieces, {STOP})


def test_each_token_ends_where_its_bytes_do_also_within_a_character() -> None:
    crab = "🦀".encode()
    assert ends("a 🦀b", [b"a", b" " + crab[:2], crab[2:], b"b"]) == [1, 4, 6, 7]


@pytest.mark.parametrize(
    ("text", "expected"), [("hello", [2, 5, 5]), ("hello<|im_end|>", [2, 5, 15]), ("hel", [2, 3, 3]), ("", [0, 0, 0])]
)
def test_a_stop_that_the_text_leaves_out_or_cuts_has_no_text(text: str, expected: list[int]) -> None:
    assert ends(text, [b"he", b"llo", b"<|im_end|>"], [1, 2, STOP]) == expected


def test_a_control_token_left_out_in_the_middle_has_no_text() -> None:
    assert ends("hello", [b"he", b"<|x|>", b"llo"], [1, STOP, 2]) == [2, 2, 5]


def test_bytes_that_are_no_character_are_the_replacement_the_worker_writes() -> None:
    assert ends("a\ufffdb", [b"a", b"\xff", b"b"]) == [1, 4, 5]
    assert ends("a\ufffd", [b"a", b"\xe4", b"\xbd"]) == [1, 4, 4]
    assert ends("\ufffdx", [b"\xe4", b"\xbdx"]) == [3, 4]
    assert ends("a", [b"a", b"\xe4"]) == [1, 1]  # a worker that holds back what is unfinished


def test_a_piece_that_ends_within_a_character_ends_behind_it() -> None:
    text = "你好".encode()
    assert decoded_ends([text[:1], text[1:4], text[4:]]) == ("你好", [3, 6, 6])
    assert decoded_ends([b"\xff", text[:2]]) == ("\ufffd\ufffd", [3, 6])
    assert decoded_ends([]) == ("", [])


def test_where_text_and_ids_do_not_agree_the_first_token_takes_the_whole_text() -> None:
    assert ends("other", [b"he", b"llo"]) == [5, 5]
    assert ends("hello", [None, b"llo"]) == [5, 5]


@given(st.text(max_size=12), st.lists(st.integers(0, 5), max_size=12), st.booleans())
def test_ends_never_decrease_and_reach_the_end_whatever_the_cuts(text: str, sizes: list[int], is_cut: bool) -> None:
    encoded, pieces, at = text.encode(), [], 0
    for size in sizes:
        pieces.append(encoded[at : at + size])
        at += size
    pieces.append(encoded[at:])
    shown = text[: len(text) // 2] if is_cut else text
    found = ends(shown, pieces)
    assert found == sorted(found)
    assert found[-1] == len(shown.encode())
