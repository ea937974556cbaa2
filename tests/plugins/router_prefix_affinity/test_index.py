"""The index of a worker's prompts against a plain list of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from router_prefix_affinity.index import PrefixIndex

blocks = st.integers(0, 3)


def chain_of(prompt: list[int]) -> list[int]:
    """What a chain of hashes is: each link stands for all before it."""
    return [hash(tuple(prompt[: end + 1])) for end in range(len(prompt))]


def common(first: list[int], second: list[int]) -> int:
    return next(
        (at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]),
        min(len(first), len(second)),
    )


@given(prompts=st.lists(st.lists(blocks, max_size=8), max_size=20), asked=st.lists(blocks, max_size=8))
def test_a_match_is_the_longest_common_prefix_with_any_prompt(prompts: list[list[int]], asked: list[int]) -> None:
    index = PrefixIndex()
    for prompt in prompts:
        index.add(chain_of(prompt), max_blocks=10_000)
    assert index.match(chain_of(asked)) == max((common(prompt, asked) for prompt in prompts), default=0)


@given(prompts=st.lists(st.lists(blocks, max_size=8), max_size=30), max_blocks=st.integers(1, 12))
def test_it_is_bounded_and_forgets_ends_before_beginnings(prompts: list[list[int]], max_blocks: int) -> None:
    index = PrefixIndex()
    for prompt in prompts:
        chain = chain_of(prompt)
        index.add(chain, max_blocks)
        assert len(index) <= max_blocks
        assert index.match(chain) == min(len(chain), max_blocks), "the newest prompt is known as far as there is room"
    for prompt in prompts:
        chain = chain_of(prompt)
        known = [block in index for block in chain]
        assert known == sorted(known, reverse=True), "no block without those before it"
        assert index.match(chain) == sum(known)


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    index = PrefixIndex()
    for prompt in ([1, 1], [2, 2], [1, 1], [3, 3]):
        index.add(chain_of(prompt), max_blocks=4)
    assert [index.match(chain_of(prompt)) for prompt in ([1, 1], [2, 2], [3, 3])] == [2, 0, 2]


def test_an_empty_chain_matches_nothing_and_adds_nothing() -> None:
    index = PrefixIndex()
    index.add([], max_blocks=4)
    assert (index.match([]), len(index)) == (0, 0)
