"""A prompt's chain of hashes: a longer prompt's chain begins with a shorter one's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_prefix_affinity.prompt import block_chain, prompt_bytes

BLOCK = 16
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=60)}), min_size=1
)


def chain(body: dict[str, Any]) -> list[int]:
    return block_chain(body, BLOCK)


@given(first=messages, more=messages)
def test_a_later_turns_chain_begins_with_the_earlier_turns(first: Any, more: Any) -> None:
    early, late = chain({"messages": first}), chain({"messages": first + more})
    assert late[: len(early)] == early


@given(ids=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=60), more=st.lists(st.integers(0, 9), max_size=60))
def test_longer_ids_begin_with_the_shorter_ones(ids: list[int], more: list[int]) -> None:
    early, late = chain({"input_ids": ids}), chain({"input_ids": ids + more})
    assert len(early) == len(ids) * 4 // BLOCK
    assert late[: len(early)] == early


@given(text=st.text(min_size=1), more=st.text())
def test_longer_text_begins_with_the_shorter(text: str, more: str) -> None:
    for key in ("text", "prompt", "input"):
        assert chain({key: text + more})[: len(chain({key: text}))] == chain({key: text})


@given(head=st.text(min_size=64, max_size=64), tail=st.text(min_size=20))
def test_a_change_early_on_changes_every_block_behind_it(head: str, tail: str) -> None:
    one, other = chain({"text": "a" + head + tail}), chain({"text": "b" + head + tail})
    assert set(one).isdisjoint(other)


@pytest.mark.parametrize(
    "context",
    [{"model": "m"}, {"tools": [{"type": "function"}]}, {"cache_salt": "s"}, {"extra_key": "k"}, {"lora_path": "l"}],
)
def test_what_changes_the_computation_changes_the_chain(context: dict[str, Any]) -> None:
    plain = {"messages": [{"role": "user", "content": "x" * 100}]}
    assert set(chain(plain)).isdisjoint(chain({**plain, **context}))


def test_what_does_not_change_the_prompt_does_not_change_the_chain() -> None:
    plain = {"input_ids": list(range(100))}
    assert chain(plain) == chain({**plain, "sampling_params": {"temperature": 0.5}, "rid": "r", "stream": True})


@pytest.mark.parametrize(
    "body", [{}, {"text": ""}, {"messages": []}, {"input_ids": None}, {"model": "m"}, {"text": "ab"}]
)
def test_a_body_without_a_whole_block_of_prompt_has_no_chain(body: dict[str, Any]) -> None:
    assert chain(body) == []


@pytest.mark.parametrize("odd", [[1, "a"], [2**40], [[1, 2], [3]], ["a", "b"], {"a": 1}, 7, True, [True, None]])
def test_odd_prompts_have_bytes_too(odd: Any) -> None:
    assert isinstance(prompt_bytes(odd), bytes)


def test_the_most_exact_form_of_a_prompt_counts() -> None:
    both = {"input_ids": list(range(50)), "messages": [{"role": "user", "content": "x" * 99}]}
    assert chain(both) == chain({"input_ids": list(range(50))})
