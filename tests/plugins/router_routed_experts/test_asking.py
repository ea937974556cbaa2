from __future__ import annotations

from array import array

import pytest
from router_routed_experts.asking import CHAT, COMPLETIONS, GENERATE, TOKENS, edits, read_asked


def asks(target: str, body: dict, start: int = 0) -> dict:
    return edits(read_asked(target, body), body, start)


def hidden(target: str, body: dict) -> set[bytes]:
    return set(read_asked(target, body).hidden)


def test_generate_is_asked_for_new_rows_and_only_they_are_hidden() -> None:
    assert asks(GENERATE, {"text": "a"}) == {"return_routed_experts": True}
    assert asks(GENERATE, {"input_ids": [1]}, 8) == {"return_routed_experts": True, "routed_experts_start_len": 8}
    assert hidden(GENERATE, {"text": "a"}) == {b"routed_experts"}


@pytest.mark.parametrize(
    ("body", "start"),
    [
        ({"return_routed_experts": True}, 0),
        ({"return_routed_experts": True, "routed_experts_start_len": 3}, 3),
        ({"routed_experts_prompt_start": 5}, 5),
    ],
)
def test_a_client_that_asks_itself_is_left_alone(body, start) -> None:
    asked = read_asked(GENERATE, body)
    assert (asked.is_own, asked.start, asked.hidden, edits(asked, body, 8)) == (True, start, (), {})


def test_chat_is_asked_for_what_counts_its_tokens_in_a_way_that_its_form_allows() -> None:
    assert asks(CHAT, {}) == {"return_routed_experts": True, "return_meta_info": True}
    assert hidden(CHAT, {}) == {b"routed_experts", b"meta_info"}
    assert hidden(CHAT, {"return_meta_info": True}) == {b"routed_experts"}
    assert asks(CHAT, {"return_meta_info": True}, 4) == {
        "return_routed_experts": True,
        "routed_experts_start_len": 4,
        "routed_experts_prompt_start": 4,
    }
    streamed = {"stream": True}
    assert asks(CHAT, streamed) == {
        "return_routed_experts": True,
        "return_input_ids_in_sglext": True,
        "return_output_ids_in_sglext": True,
    }
    assert read_asked(CHAT, streamed).hides_sglext
    partly = {"stream": True, "return_output_ids_in_sglext": True}
    assert not read_asked(CHAT, partly).hides_sglext
    assert hidden(CHAT, partly) == {b"routed_experts", b"input_ids"}
    assert not read_asked(CHAT, streamed, ["x-sglext-return-input-ids"]).hides_sglext


def test_a_chat_client_that_asks_itself_gets_its_experts_where_it_looks_for_them() -> None:
    assert asks(CHAT, {"return_routed_experts": True}) == {}
    body = {"return_routed_experts": True, "stream": True}
    assert set(asks(CHAT, body)) == {"return_input_ids_in_sglext", "return_output_ids_in_sglext"}
    assert hidden(CHAT, body) == {b"input_ids", b"output_ids"}
    assert not read_asked(CHAT, body).hides_sglext


def test_completions_are_asked_for_ids_which_both_engines_give() -> None:
    assert asks(COMPLETIONS, {}) == {"return_routed_experts": True, "return_token_ids": True}
    assert hidden(COMPLETIONS, {}) == {b"routed_experts", b"token_ids", b"prompt_token_ids", b"sglext"}
    assert hidden(COMPLETIONS, {"return_token_ids": True, "stream": True}) == {b"routed_experts"}
    assert hidden(COMPLETIONS, {"return_cached_tokens_details": True, "return_token_ids": True}) == {b"routed_experts"}
    assert hidden(COMPLETIONS, {"return_routed_experts": True}) == {b"token_ids", b"prompt_token_ids"}


def test_tokens_in_tokens_out_is_only_told_where_to_begin() -> None:
    body = {"token_ids": [1, 2], "sampling_params": {"max_tokens": 4}}
    assert asks(TOKENS, body) == {}
    assert asks(TOKENS, body, 1) == {"sampling_params": {"max_tokens": 4, "routed_experts_prompt_start": 1}}
    own = {"token_ids": [1, 2], "sampling_params": {"routed_experts_prompt_start": 1}}
    assert (read_asked(TOKENS, own).is_own, read_asked(TOKENS, own).start, hidden(TOKENS, own)) == (True, 1, set())


@pytest.mark.parametrize(
    ("target", "body"),
    [
        (GENERATE, {"input_ids": [1, 2]}),
        (CHAT, {"input_ids": [1, 2]}),
        (CHAT, {"kv_transfer_params": {"prompt_token_ids": [1, 2]}}),
        (COMPLETIONS, {"prompt": [1, 2]}),
        (TOKENS, {"token_ids": [1, 2]}),
    ],
)
def test_the_prompts_ids_are_found_where_each_path_has_them(target, body) -> None:
    assert read_asked(target, body).prompt_ids == array("i", [1, 2])


@pytest.mark.parametrize(
    ("target", "body"),
    [
        (GENERATE, {"text": "a"}),
        (GENERATE, {"input_ids": [[1], [2]]}),
        (GENERATE, {"input_ids": [1 << 40]}),
        (CHAT, {"kv_transfer_params": 5}),
        (COMPLETIONS, {"prompt": "a"}),
        (COMPLETIONS, {"prompt": []}),
    ],
)
def test_a_prompt_without_ids_has_none(target, body) -> None:
    assert read_asked(target, body).prompt_ids is None
