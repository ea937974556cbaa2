from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_tito.bridge import SENTINEL, Bridge, NoBridgeError, Segments, collapse
from router_tito.node import RenderContext
from router_tito.template import ChatTemplate
from tito_kit import DEEPSEEK_LIKE, GLM_LIKE, QWEN3_LIKE, Trained, assistant, system, tool, user

NOTHING = RenderContext((), {})


def bridge(template: str = QWEN3_LIKE) -> tuple[Bridge, Trained]:
    tokenizer = Trained(template)
    return Bridge(tokenizer, ChatTemplate(tokenizer)), tokenizer


def test_a_tail_is_what_follows_an_assistant_turn_close_first() -> None:
    made, tokenizer = bridge()
    tail = made.tail([tool("r1"), tool("r2"), user("and?")], NOTHING)
    assert tokenizer.decode(tail.ids) == (
        "<|im_end|>\n<|im_start|>user\n<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</tool_response>"
        "<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    )
    owned = [tokenizer.decode([i for i, owner in zip(*tail_pair(tail), strict=True) if owner == index]) for index in (0, 2, -1)]  # fmt: skip  # noqa: E501 -- one table
    assert owned[0].endswith("r2\n</tool_response><|im_end|>\n")
    assert owned[1:] == ["<|im_start|>user\nand?<|im_end|>\n", "<|im_start|>assistant\n"]


def tail_pair(tail: Any) -> tuple[Any, Any]:
    return tail.ids, tail.message_indices


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        ([], "no_tail"),
        ([assistant("x")], "role_assistant"),
        ([{"role": "developer", "content": "x"}], "role_developer"),
        ([tool("r"), {"role": "critic", "content": "x"}], "role_critic"),
        ([user(f"say {SENTINEL}")], "sentinel_not_once"),
    ],
)
def test_a_tail_that_is_no_plain_answer_to_the_model_is_not_bridged(tail: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(NoBridgeError, match=reason):
        bridge()[0].tail(tail, NOTHING)


def test_a_template_that_moves_a_message_or_keeps_state_is_not_bridged_there() -> None:
    made, _ = bridge(DEEPSEEK_LIKE)
    assert made.fault(["system"], NOTHING) == "tail_not_rendered"
    assert made.fault(["tool"], NOTHING) == "template_differs"
    assert made.fault(["user"], NOTHING) == ""
    with pytest.raises(NoBridgeError, match="tail_not_rendered"):
        made.tail([system("late")], NOTHING)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('no') }}", "template_refused"),
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}",
            "once",
        ),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "sentinel_not_once"),
        ("{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}", "template_differs"),
    ],
)
def test_a_template_that_cannot_be_cut_is_found_out(template: str, reason: str) -> None:
    assert reason in bridge(template)[0].fault(["user"], NOTHING)


def test_a_template_without_system_messages_is_tried_without_them() -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + GLM_LIKE
    assert bridge(refusing)[0].fault(["user"], NOTHING) == ""


def test_the_generation_prompt_depends_on_the_context_and_is_remembered() -> None:
    made, _ = bridge()
    assert made.generation_prompt(NOTHING) == "<|im_start|>assistant\n"
    silent = RenderContext((), {"enable_thinking": False})
    assert made.generation_prompt(silent) == "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert made.generation_prompt(NOTHING) == "<|im_start|>assistant\n"


def test_runs_of_a_role_count_as_two_at_most() -> None:
    assert collapse(["tool", "tool", "tool", "user", "tool"]) == ("tool", "tool", "user", "tool")
    assert collapse([]) == ()


def labels_of(text: str, cuts: dict[int, int], count: int, first: int = 0) -> list[int]:
    segments = Segments.cut(text, cuts, count, first)
    whole, *parts = Trained().encode_batch([text, *segments.texts])
    return list(segments.label(array("i", whole), parts))


@given(st.text(max_size=30), st.lists(st.integers(0, 30), max_size=4), st.integers(0, 4))
def test_labels_cover_every_token_and_never_run_backwards(text: str, ends: list[int], first: int) -> None:
    cuts = {index: end for index, end in enumerate(sorted(ends)) if end <= len(text)}
    first = min(first, len(ends))
    labels = labels_of(text, cuts, len(ends), first)
    assert len(labels) == len(Trained().encode(text))
    owned = [label for label in labels if label >= 0]
    assert owned == sorted(owned)
    assert all(first <= label < len(ends) for label in owned)


def test_tokens_belong_to_the_message_whose_text_they_are() -> None:
    assert len(Trained().encode("the city")) == 2
    assert labels_of("the<|eot|>", {0: 3}, 1) == [0, -1]
    assert labels_of("the<|eot|>the<|eot|>", {0: 3, 1: 10}, 2) == [0, 1, -1, -1]


def test_messages_that_cannot_be_told_apart_share_one_label() -> None:
    assert labels_of("the<|eot|>the<|eot|>", {1: 10}, 2) == [0, 0, -1, -1]
    assert labels_of("the<|eot|>the<|eot|>", {0: 3}, 2) == [0, 1, 1, 1]


def test_a_token_across_a_cut_belongs_to_neither_side() -> None:
    assert labels_of("the city<|eot|>", {0: 6, 1: 8}, 2) == [0, 0, -1]


def test_messages_that_are_stored_already_are_not_told_apart_again() -> None:
    assert labels_of("the<|eot|>the<|eot|>", {0: 3, 1: 10}, 2, first=1)[1:] == [1, -1, -1]
