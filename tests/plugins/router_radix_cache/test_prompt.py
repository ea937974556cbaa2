from __future__ import annotations

import pytest
from router_radix_cache.prompt import known_start
from router_radix_cache.tokens import PackedTokens, encode_text
from router_radix_cache.tree import RadixTree

PROMPT = "Q:"
PIECES = {1: b"Q:", 2: b" he", 3: b"llo", 9: b"<|im_end|>", 10: b"\n", 20: b"!\nUser:", 30: b"\xe4\xbd", 31: b"\xa0"}


def tree_of(*sampled: int, text: str, ends: list[int]) -> RadixTree:
    """A prompt, and an answer whose text is ``text`` with its tokens ending at ``ends``."""
    tree, tokens = RadixTree(), PackedTokens()
    tokens.add_context([1], [2])
    tokens.add_sampled(sampled, ends, [-0.5] * len(sampled), "v1")
    tree.insert(PROMPT + text, tokens)
    return tree


def start(tree: RadixTree, text: str) -> tuple[list[int], list[int], str]:
    tokens, rest = known_start(tree.match(text), encode_text(text), lambda ids: [PIECES.get(one) for one in ids])
    assert sum(span.stop - span.start for span in tokens.spans) == len(tokens.logprobs)
    return tokens.ids.tolist(), tokens.ends.tolist(), rest


def test_an_answer_that_shows_all_its_tokens_is_kept_whole() -> None:
    tree = tree_of(2, 3, text=" hello", ends=[3, 6])
    assert start(tree, "Q: hello and") == ([1, 2, 3], [2, 5, 8], " and")


@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        ("<|im_end|>\nUser: more", ([1, 2, 3, 9], [2, 5, 8, 18], "\nUser: more")),
        ("\nUser: more", ([1, 2, 3], [2, 5, 8], "\nUser: more")),
        ("", ([1, 2, 3], [2, 5, 8], "")),
        ("<|im_", ([1, 2, 3], [2, 5, 8], "<|im_")),
    ],
)
def test_a_hidden_stop_is_kept_where_the_text_goes_on_with_it_and_left_out_where_it_does_not(behind, expected) -> None:
    tree = tree_of(2, 3, 9, text=" hello", ends=[3, 6, 6])
    assert start(tree, "Q: hello" + behind) == expected


def test_of_several_hidden_tokens_those_are_kept_that_the_text_spells() -> None:
    tree = tree_of(2, 3, 9, 10, text=" hello", ends=[3, 6, 6, 6])
    assert start(tree, "Q: hello<|im_end|>X") == ([1, 2, 3, 9], [2, 5, 8, 18], "X")


@pytest.mark.parametrize(
    ("behind", "expected"),
    [("\nUser: hi", ([1, 2, 3, 20], [2, 5, 8, 15], " hi")), (" so", ([1, 2, 3], [2, 5, 8], "! so"))],
)
def test_a_token_that_a_stop_text_cut_is_kept_whole_or_encoded_afresh(behind, expected) -> None:
    tree = tree_of(2, 3, 20, text=" hello!", ends=[3, 6, 7])
    assert start(tree, "Q: hello!" + behind) == expected


def test_what_is_encoded_afresh_begins_with_a_whole_character() -> None:
    tree = tree_of(30, 31, 9, text="你", ends=[3, 3, 3])
    assert start(tree, "Q:你<|im_end|>") == ([1, 30, 31, 9], [2, 4, 5, 15], "")
    tree = tree_of(30, 20, text="你", ends=[2, 3])  # the second token does not spell what it is said to show
    assert start(tree, "Q:你!") == ([1, 30, 20], [2, 4, 5], "!")


def test_ids_without_a_known_token_are_left_as_they_are() -> None:
    tree = tree_of(2, 999, text=" hello", ends=[6, 6])
    assert start(tree, "Q: hello more") == ([1, 2, 999], [2, 8, 8], " more")


def test_where_nothing_is_known_all_is_encoded() -> None:
    assert start(RadixTree(), "Q: new") == ([], [], "Q: new")
