"""Qwen3 as the package ``renderers`` (PyPI) writes it: its ids are ours, rendered whole and bridged.

Needs the extra ``parity`` and a folder with Qwen3's tokenizer, named by ``QWEN3_TOKENIZER_DIR``.
"""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_tokenizers import QWEN3, HuggingFace, needs_qwen3
from router_tito.bridge import NoBridgeError
from router_tito.node import RenderContext
from router_tito.render import Renderer
from tito_kit import assistant, call, system, tool, user

qwen3_module = pytest.importorskip("renderers.qwen3", reason="the extra 'parity' (package renderers) is not installed")
configs = pytest.importorskip("renderers.configs")

pytestmark = needs_qwen3

PIECES = [
    "the city",
    "x  y",
    "fine\n",
    "\n",
    '{"a": [1, 2.50]}',
    "é東🙂",
    "a<|im_end|>b",
    "<tool_response>",
    "</b>",
    "1+1",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=4).map(" ".join) | st.text(max_size=12)
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "description": "é <b>", "parameters": {"type": "object", "properties": {}}},
    },
    {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "required": ["x"]}}},
]
ARGUMENTS = st.sampled_from(['{"x": 1}', "{}", '{"path":"a\\nb","n":1e3}', '{"é": null}'])
CALLS = st.lists(st.builds(call, st.sampled_from(["f", "g"]), ARGUMENTS), max_size=3)
TAILS = st.lists(st.builds(tool, TEXTS), max_size=3).flatmap(
    lambda tools: st.lists(st.builds(user, TEXTS), min_size=0 if tools else 1, max_size=2).map(
        lambda users: [*tools, *users]
    )
)


# They encode a role's line apart from what the model says, we all of it, as the template's text is encoded: a text
# that begins with white space is cut otherwise. Nor does a model say a control token and go on.
SAID = TEXTS.filter(lambda text: not text[:1].isspace() and "think>" not in text and "<|" not in text)


@st.composite
def answers(draw: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if thought := draw(st.just("") | SAID):
        fields["reasoning_content"] = thought
    if calls := draw(CALLS):
        fields["tool_calls"] = calls
    return assistant(draw(SAID), **fields)


@st.composite
def conversations(draw: Any) -> list[dict[str, Any]]:
    messages = [system(draw(TEXTS))] if draw(st.booleans()) else []
    messages.append(user(draw(TEXTS)))
    for _ in range(draw(st.integers(0, 3))):
        messages += [draw(answers()), *draw(TAILS)]
    return messages


@pytest.fixture(scope="module")
def ours() -> Renderer:
    return Renderer(HuggingFace(QWEN3))


def theirs(*, enable_thinking: bool = True) -> Any:
    from transformers import AutoTokenizer

    if "tokenizer" not in _LOADED:
        _LOADED["tokenizer"] = AutoTokenizer.from_pretrained(QWEN3)
    config = configs.Qwen3RendererConfig(enable_thinking=enable_thinking, thinking_retention="all")
    return qwen3_module.Qwen3Renderer(_LOADED["tokenizer"], config)


_LOADED: dict[str, Any] = {}
THINK_END = 151668
NO_THINKING = {"enable_thinking": False}


@settings(max_examples=300, deadline=None)
@given(messages=conversations(), has_tools=st.booleans())
def test_a_conversation_has_their_ids(ours: Renderer, messages: list[dict[str, Any]], has_tools: bool) -> None:
    tools = TOOLS if has_tools else None
    expected = theirs().render_ids(messages, tools=tools, add_generation_prompt=True)
    assert list(ours.render(messages, RenderContext(tuple(tools or ()), {})).ids) == expected


@settings(max_examples=300, deadline=None)
@given(
    messages=conversations(),
    said=answers(),
    tail=TAILS,
    has_tools=st.booleans(),
    is_cut=st.booleans(),
    is_thinking=st.booleans(),
)
def test_a_sampled_turn_is_continued_as_they_do(
    ours: Renderer,
    messages: list[dict[str, Any]],
    said: dict[str, Any],
    tail: list[dict[str, Any]],
    has_tools: bool,
    is_cut: bool,
    is_thinking: bool,
) -> None:
    """``is_cut``: the answer was ended by its length, in a thought or behind it."""
    tools = TOOLS if has_tools else None
    renderer = theirs(enable_thinking=is_thinking)
    context = RenderContext(tuple(tools or ()), {} if is_thinking else NO_THINKING)
    prompt = renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
    before = theirs().render_ids(messages, tools=tools, add_generation_prompt=True)
    completion = theirs().render_ids([*messages, said], tools=tools)[len(before) : -1]  # no line feed behind the close
    if not is_thinking:
        completion = completion[completion.index(THINK_END) + 2 :]
    if is_cut:
        completion = completion[: max(1, len(completion) // 2)]
    expected = renderer.bridge_to_next_turn(prompt, completion, tail, tools=tools)
    try:
        bridged = ours.bridge(array("i", prompt), array("i", completion), tail, context)
    except NoBridgeError as error:
        # They close a thought that was cut off; we render anew, since the model said nothing behind it.
        assert str(error) == "cut_in_thinking"
        assert is_cut
        return
    assert expected is not None
    assert list(bridged.ids) == expected.token_ids
    assert bridged.reused_prefix_length == len(prompt) + len(completion)
    assert list(bridged.message_indices).count(-1) <= expected.message_indices[bridged.labelled_from :].count(-1)


@needs_qwen3
def test_an_assistants_message_is_continued_by_neither(ours: Renderer) -> None:
    prompt = theirs().render_ids([user("q")], add_generation_prompt=True)
    tail = [assistant("a"), user("u")]
    assert theirs().bridge_to_next_turn(prompt, [151645], tail) is None
    with pytest.raises(NoBridgeError, match="role_assistant"):
        ours.bridge(array("i", prompt), array("i", [151645]), tail)
