"""The plain renderer against the shipped template, which transformers renders with jinja."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from router_core.reference_engine.chat_template import render_chat
from router_core.reference_engine.tokenizer import ASSETS, Tokenizer

HF = AutoTokenizer.from_pretrained(str(ASSETS))
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command <b>&'\"é 你好",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
CALL = {"type": "function", "id": "call_0", "function": {"name": "bash", "arguments": {"command": "ls 'ü'", "n": 1.5}}}
BARE_CALL = {"name": "bash", "arguments": '{"command":"ls"}'}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def says(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


SYSTEM = {"role": "system", "content": "You are\nbrief."}
ANSWER = {"role": "tool", "content": "a.txt\nb.txt", "tool_call_id": "call_0"}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [user("hi")],
    "system": [SYSTEM, user("hi")],
    "late system": [user("hi"), SYSTEM, user("again")],
    "only system": [SYSTEM],
    "two turns": [user("hi"), says("hello"), user("bye")],
    "prefilled": [user("hi"), says("hello")],
    "thinking in content": [user("hi"), says("<think>\nhmm\n</think>\n\nhello"), user("bye")],
    "thinking in its field": [user("hi"), says("hello", reasoning_content="\nhmm\n"), user("bye")],
    "thinking kept at the end": [user("hi"), says("hello", reasoning_content="hmm")],
    "empty thinking at the end": [user("hi"), says("hello", reasoning_content="")],
    "unopened thinking": [user("hi"), says("hmm</think>hello")],
    "twice closed": [user("hi"), says("<think>a</think>b</think>c")],
    "tool": [user("ls"), says("", tool_calls=[CALL]), ANSWER],
    "tool with words": [user("ls"), says("let me see", tool_calls=[CALL, CALL]), ANSWER, ANSWER],
    "thinking between tools": [
        SYSTEM,
        user("ls"),
        says("first", reasoning_content="one", tool_calls=[CALL]),
        ANSWER,
        says("second", reasoning_content="two", tool_calls=[BARE_CALL]),
        ANSWER,
        says("done", reasoning_content="three"),
        user("more"),
    ],
    "tool steps go on": [
        user("ls"),
        says("", reasoning_content="one", tool_calls=[CALL]),
        ANSWER,
        says("", tool_calls=[CALL]),
        ANSWER,
    ],
    "tool answer in a user turn": [
        user("ls"),
        says("x", reasoning_content="y"),
        user("<tool_response>z</tool_response>"),
    ],
    "no content": [user("ls"), says(None, tool_calls=[CALL]), ANSWER],
    "no user": [says("hello", reasoning_content="hmm")],
    "starts with a tool": [ANSWER, user("hi")],
    "parts": [user([{"type": "text", "text": "hi"}]), says("hello")],
    "empty": [user(""), says("")],
    "newlines": [user("\n\na\n"), says("\n\nb\n", reasoning_content="\n\nc\n\n"), ANSWER],
}


def templated(messages: list[dict[str, Any]], tools: list[Any], **options: Any) -> str:
    text = HF.apply_chat_template(messages, tools=tools or None, tokenize=False, **options)
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("is_prompt", [True, False])
@pytest.mark.parametrize("tools", [[], [TOOL], [TOOL, TOOL]])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_is_rendered_as_by_the_template(name: str, tools: list[Any], is_prompt: bool) -> None:
    messages = CONVERSATIONS[name]
    expected = templated(messages, tools, add_generation_prompt=is_prompt)
    assert render_chat(messages, tools, add_generation_prompt=is_prompt) == expected


@pytest.mark.parametrize("is_thinking", [True, False])
def test_thinking_can_be_switched_off(is_thinking: bool) -> None:
    messages = CONVERSATIONS["two turns"]
    expected = templated(messages, [], add_generation_prompt=True, enable_thinking=is_thinking)
    assert render_chat(messages, is_thinking=is_thinking) == expected


texts = st.text(st.sampled_from("ab\n <>{}\"'é")) | st.sampled_from(
    ["<think>", "</think>\n", "<tool_response></tool_response>"]
)
messages = st.lists(
    st.one_of(
        st.builds(user, texts),
        st.builds(says, texts | st.none()),
        st.builds(says, texts, reasoning_content=texts),
        st.builds(says, texts, tool_calls=st.lists(st.sampled_from([CALL, BARE_CALL]), max_size=3)),
        st.builds(lambda content: {"role": "tool", "content": content}, texts),
        st.builds(lambda content: {"role": "system", "content": content}, texts),
    ),
    min_size=1,
    max_size=8,
)


@given(messages, st.sampled_from([[], [TOOL]]))
def test_any_conversation_is_rendered_as_by_the_template(conversation: list[dict[str, Any]], tools: list[Any]) -> None:
    assert render_chat(conversation, tools) == templated(conversation, tools, add_generation_prompt=True)


def test_both_tokenizers_give_the_same_ids() -> None:
    conversation = CONVERSATIONS["thinking between tools"]
    ids = HF.apply_chat_template(conversation, tools=[TOOL], add_generation_prompt=True, return_dict=False)
    assert Tokenizer().encode(render_chat(conversation, [TOOL])) == ids
