from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_radix_cache.tokens import PackedTokens, Span, decode_text, encode_text


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=10))
def test_any_text_that_json_can_carry_survives(text: str) -> None:
    assert decode_text(encode_text(text)) == text


def test_sampled_tokens_of_one_version_that_follow_each_other_are_one_span() -> None:
    tokens = PackedTokens()
    tokens.add_context([1, 2], [1, 2])
    tokens.add_sampled([3], [1], [-0.5], "v1")
    tokens.add_sampled([4], [1], [-0.25], "v1")
    tokens.add_sampled([5], [1], [-0.125], "v2")
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
