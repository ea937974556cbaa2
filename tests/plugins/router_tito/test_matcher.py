from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_tito.errors import MessageError
from router_tito.matcher import ContextHashes, Matcher, context_hash
from test_canonical import VALUES
from tito_kit import assistant, call, user

LOOSE = Matcher()
STRICT = Matcher(["strict"])
OPTIONAL = Matcher(["loose_tool_call", "reasoning_optional"])


def calling(arguments: Any, **fields: Any) -> dict[str, Any]:
    return assistant(None, tool_calls=[call("f", arguments)], **fields)


def test_keys_are_the_same_on_every_machine() -> None:
    assert LOOSE.key(user("q1")).hash.hex() == "0f266e88a2a8e2315acfe07d86a7eac8"


def test_respaced_and_reordered_arguments_are_the_same_call_unless_strict() -> None:
    left, right = calling('{"path": "/tmp", "all": true}'), calling('{"all":true,"path":"/tmp"}')
    assert LOOSE.key(left) == LOOSE.key(right)
    assert STRICT.key(left) != STRICT.key(right)


def test_arguments_that_an_agent_has_parsed_already_are_the_same_call() -> None:
    assert LOOSE.key(calling('{"x": 1, "y": [null]}')) == LOOSE.key(calling({"y": [None], "x": 1.0}))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ('{"x": 1}', '{"x": "1"}'),
        ('{"x": 1}', '{"x": true}'),
        ('{"x": 9007199254740992}', '{"x": 9007199254740993}'),
        ('{"x": 1, "x": 2}', '{"x": 2}'),
        ('{"x": 1, "x": 2}', '{"x":1,"x":2}'),
        ('{"x": ', '{"x":'),
        ("", "{}"),
        ('{"x": NaN}', '{"x": null}'),
        ('["text", "{"]', "{"),
    ],
)
def test_arguments_that_are_not_one_json_value_equal_only_themselves(left: str, right: str) -> None:
    assert LOOSE.key(calling(left)) != LOOSE.key(calling(right))
    assert LOOSE.key(calling(left)) == LOOSE.key(calling(left))


def test_arguments_nested_without_end_are_compared_as_text() -> None:
    deep = "[" * 100_000
    assert LOOSE.key(calling(deep)) == LOOSE.key(calling(deep))
    closed = "[" * 3000 + "]" * 3000
    assert LOOSE.key(calling(closed)) == LOOSE.key(calling(closed))
    assert LOOSE.key(calling(closed)) != LOOSE.key(calling(closed + " "))


@given(VALUES)
def test_however_an_agent_writes_a_value_it_is_the_same_call(value: Any) -> None:
    texts = [json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False), json.dumps(value, sort_keys=True)]
    assert len({LOOSE.key(calling(text)) for text in texts}) == 1


@given(st.text(max_size=20))
def test_any_argument_text_has_a_key(text: str) -> None:
    assert LOOSE.key(calling(text)) == LOOSE.key(calling(text))


def test_reasoning_counts_under_both_its_names_unless_optional() -> None:
    thinking = assistant("x", reasoning_content="t")
    assert LOOSE.key(thinking) == LOOSE.key(assistant("x", reasoning="t"))
    assert LOOSE.key(thinking) != LOOSE.key(assistant("x"))


@pytest.mark.parametrize(
    "stored",
    [
        assistant("done", reasoning_content="t\n"),
        assistant("<think>\nt\n</think>\n\ndone"),
        assistant("done", reasoning="t"),
    ],
)
def test_optional_reasoning_may_be_left_out_or_sent_in_another_form_but_not_changed(stored: dict[str, Any]) -> None:
    assert OPTIONAL.key(assistant("done")).accepts(OPTIONAL.key(stored))
    assert OPTIONAL.key(assistant("done", reasoning_content="t")).accepts(OPTIONAL.key(stored))
    assert not OPTIONAL.key(assistant("done", reasoning_content="u")).accepts(OPTIONAL.key(stored))
    assert not OPTIONAL.key(stored).accepts(OPTIONAL.key(assistant("done")))
    assert not OPTIONAL.key(assistant("undone")).accepts(OPTIONAL.key(stored))


def test_thinking_tags_that_a_user_types_are_text() -> None:
    assert OPTIONAL.key(user("<think>a</think>b")) != OPTIONAL.key(user("b"))


def test_an_own_matcher_is_named_by_its_path_and_combines() -> None:
    own = Matcher(["loose_tool_call", "tito_kit:without_content"])
    left = assistant("a", tool_calls=[call("f", '{"x":1}')])
    assert own.key(left) == own.key({**left, "content": "b", "tool_calls": [call("f", '{"x": 1}')]})
    assert Matcher(["tito_kit.without_content"]).key(user("a")) == own.key(user("b"))


@pytest.mark.parametrize("name", ["lose_tool_call", "no.such.module", "json.nothing", "json:decoder"])
def test_a_matcher_that_cannot_be_had_is_an_error_that_names_it(name: str) -> None:
    with pytest.raises(MessageError, match=name):
        Matcher([name])


def test_ids_of_calls_and_results_count() -> None:
    assert LOOSE.key(assistant(tool_calls=[call("f", "{}", "a")])) != LOOSE.key(
        assistant(tool_calls=[call("f", "{}", "b")])
    )
    result = {"role": "tool", "content": "r"}
    assert LOOSE.key({**result, "tool_call_id": "a"}) != LOOSE.key({**result, "tool_call_id": "b"})


def test_no_tools_are_an_empty_list_of_tools() -> None:
    assert context_hash(None, None) == context_hash([], {}) == context_hash((), None)
    assert context_hash([{"a": 1}], None) != context_hash(None, None)
    assert context_hash([{"a": 1, "b": 2}], None) == context_hash([{"b": 2, "a": 1.0}], None)
    assert context_hash(None, {"enable_thinking": False}) != context_hash(None, {"enable_thinking": 0})


def test_remembered_context_hashes_tell_true_from_one() -> None:
    hashes = ContextHashes()
    for value in (True, 1, 1.0, "1", None, True):
        assert hashes.get([{"a": value}], None) == context_hash([{"a": value}], None)
    for number in range(200):
        assert hashes.get(None, {"n": number}) == context_hash(None, {"n": number})


ARGUMENTS = json.dumps({"city": "Zürich", "unit": "C"})  # with escapes, as most servers write them
SAID = {"role": "assistant", "content": None, "tool_calls": [call("weather", ARGUMENTS)], "reasoning_content": "t"}
FUNCTION = {"arguments": ARGUMENTS, "name": "weather"}


@pytest.mark.parametrize(
    "sent",
    [
        {"content": "", "role": "assistant", "tool_calls": [{"function": FUNCTION, "id": "c1", "type": "function"}]},
        {"role": "assistant", "tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": FUNCTION}]},
        {
            "content": None,
            "role": "assistant",
            "tool_calls": [
                {"type": "function", "id": "c1", "function": {**FUNCTION, "arguments": '{"unit":"C","city":"Zürich"}'}}
            ],
        },
        {"role": "assistant", "content": [], "tool_calls": [{"id": "c1", "function": {**FUNCTION, "x": None}}]},
        {"role": "assistant", "content": [{"type": "text", "text": ""}], "tool_calls": [call("weather", ARGUMENTS)]},
        {**SAID, "reasoning_content": None, "reasoning": "t", "refusal": None, "annotations": [], "audio": None},
        {**SAID, "function_call": None, "provider_specific_fields": {"refusal": None}, "name": None},
        {**SAID, "name": "", "tool_calls": [{**call("weather", ARGUMENTS), "custom": None}]},
    ],
)
def test_the_forms_in_which_agents_send_an_answer_back_are_one_message(sent: dict[str, Any]) -> None:
    """Of the openai SDK, of langgraph (arguments anew), of litellm (null dropped, own fields), of stream readers."""
    assert OPTIONAL.key(sent).accepts(OPTIONAL.key(SAID))
