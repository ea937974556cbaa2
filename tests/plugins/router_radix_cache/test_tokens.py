from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_radix_cache.tokens import PackedTokens, Span, decode_text, encode_text, ends_from_offsets, ends_from_pieces


@given(st.lists(st.text(max_size=4), max_size=8))
def test_ends_from_character_offsets_are_those_of_the_pieces(pieces: list[str]) -> None:
    offsets = [len("".join(pieces[: number + 1])) for number in range(len(pieces))]
    expected = ends_from_pieces(piece.encode() for piece in pieces)
    assert ends_from_offsets("".join(pieces), offsets) == expected


def test_tokens_that_share_a_character_both_end_behind_it() -> None:
    assert ends_from_offsets("é🦀", [1, 2, 2, 2]).tolist() == [2, 6, 6, 6]


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=10))
def test_any_text_that_json_can_carry_survives(text: str) -> None:
    assert decode_text(encode_text(text)) == text


def test_lists_and_steps_make_the_same_sequence() -> None:
    steps = PackedTokens()
    steps.add_context([1, 2], [1, 2])
    steps.add_sampled([3], [1], [-0.5], "v1")
    steps.add_sampled([4], [1], [-0.25], "v1")
    steps.add_sampled([5], [1], [-0.125], "v2")
    lists = PackedTokens.from_lists(
        [1, 2, 3, 4, 5],
        [1, 2, 3, 4, 5],
        [0, 0, 1, 1, 1],
        [7.0, 0.0, -0.5, -0.25, -0.125],
        [None, None, "v1", "v1", "v2"],
    )
    for tokens in (steps, lists):
        assert tokens.spans == [Span(2, 4, "v1"), Span(4, 5, "v2")]
        assert tokens.ends.tolist() == [1, 2, 3, 4, 5]
        assert tokens.logprobs.tolist() == [-0.5, -0.25, -0.125]


@pytest.mark.parametrize(
    ("ids", "ends", "message"),
    [
        ([1], [1, 2], "2 ends for 1 tokens"),
        ([-1], [1], "token id -1 is negative"),
        ([1 << 31], [1], "out of range"),
        ([1], [-1], "out of range"),
        ([1, 2], [2, 1], "decrease"),
    ],
)
def test_impossible_tokens_are_refused(ids: list[int], ends: list[int], message: str) -> None:
    tokens = PackedTokens()
    with pytest.raises(ValueError, match=message):
        tokens.add_context(ids, ends)
    assert len(tokens) == 0


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        PackedTokens.from_lists([1, 2], [1, 2], [0, 1], [0.0], [None, None])
