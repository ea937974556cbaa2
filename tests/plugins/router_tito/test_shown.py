"""What a client has of a message that its worker began, against the whole that is parsed here."""

from __future__ import annotations

from typing import Any

import pytest
from router_tito.engines.shown import Shown, ShownOtherwiseError
from router_tito.parsers import Delta, ToolCall


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def shown(**message: Any) -> Shown:
    return Shown(message, "reasoning", 0)


def test_what_was_shown_is_not_told_again_however_the_whole_is_cut() -> None:
    had = shown(reasoning="so it", content="We")
    told = [
        had.rest(Delta("\nso")),
        had.rest(Delta(" it is")),
        had.rest(Delta("", "\n\nW")),
        had.rest(Delta("", "ell")),
    ]
    assert "".join(delta.reasoning for delta, _ in told) == " is"
    assert "".join(delta.content for delta, _ in told) == "ll"
    had.check()


def test_a_text_of_which_nothing_was_shown_is_told_as_it_is() -> None:
    had = shown(reasoning="so")
    assert had.rest(Delta("so", "\n\nWell"))[0] == Delta("", "\n\nWell")


def test_a_call_that_was_begun_is_ended_and_the_next_is_told_whole() -> None:
    had = shown(tool_calls=[call("look", '{"at": "the')])
    whole = (ToolCall("look", '{"at": "the sky"}'), ToolCall("go", "{}"))
    delta, ends = had.rest(Delta(calls=whole))
    assert delta.calls == whole[1:]
    assert ends == [{"index": 0, "function": {"arguments": ' sky"}'}}]
    had.check()


def test_a_call_that_was_shown_whole_may_be_spelt_otherwise() -> None:
    had = shown(tool_calls=[call("look", '{"at":1}')])
    assert had.rest(Delta(calls=(ToolCall("look", '{"at": 1}'),))) == (Delta(), [])


@pytest.mark.parametrize(
    ("message", "whole"),
    [
        ({"reasoning": "so"}, Delta("no")),
        ({"content": "<think>so"}, Delta("so", "then")),
        ({"tool_calls": [call("look", "{")]}, Delta(calls=(ToolCall("go", "{}"),))),
        ({"tool_calls": [call("look", '{"at":1')]}, Delta(calls=(ToolCall("look", '{"at": 1}'),))),
    ],
)
def test_what_the_whole_does_not_say_was_shown_wrongly(message: dict[str, Any], whole: Delta) -> None:
    with pytest.raises(ShownOtherwiseError):
        shown(**message).rest(whole)


@pytest.mark.parametrize("message", [{"content": "more than"}, {"tool_calls": [call("look", "")]}])
def test_what_the_whole_has_not_by_its_end_was_shown_wrongly(message: dict[str, Any]) -> None:
    had = shown(**message)
    had.rest(Delta("", "more"))
    with pytest.raises(ShownOtherwiseError):
        had.check()
