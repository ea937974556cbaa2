"""Reasoning and tool calls are read out of text the same way however it is cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_tito.parsers import FORMS, AnswerParser, Delta, SpecialTextFilter, ToolCall, detect_form

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}},
        },
    }
    for name in ("f", "g")
]
CALL = ToolCall("f", '{"s": "1", "n": 2}')
SECOND = ToolCall("g", "{}")
DS = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"
DS_F = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"s": "1", "n": 2}\n```<｜tool▁call▁end｜>'
DS_G = "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
QWEN_F = '<tool_call>\n{"name": "f", "arguments": {"s": "1", "n": 2}}\n</tool_call>'
QWEN_G = '<tool_call>{"name": "g"}</tool_call>'
GLM_F = (
    "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>1</arg_value>\n"
    "<arg_key>n</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
)
GLM_G = "<tool_call>g\n</tool_call>"
LLAMA_F = '{"name": "f", "parameters": {"s": "1", "n": 2}}'
LLAMA_G = '{"type": "function", "name": "g", "parameters": {}}'

WHOLE = [
    ("qwen", QWEN_F, Delta(calls=(CALL,))),
    ("qwen", f"Sure.\n{QWEN_F}\n{QWEN_G}\n", Delta(content="Sure.", calls=(CALL, SECOND))),
    ("qwen", f"<think>\nwhy\n</think>\n\nSure. {QWEN_F}", Delta("\nwhy\n", "\n\nSure.", (CALL,))),
    ("qwen", f"<think>\nwhy\n{QWEN_F}", Delta("\nwhy\n", "", (CALL,))),
    ("qwen", "<tool_call>{broken}</tool_call> on", Delta(content="<tool_call>{broken}</tool_call> on")),
    ("qwen", f"a \n<tool_call>x{QWEN_G}", Delta(content="a \n<tool_call>x", calls=(SECOND,))),
    ("qwen", '<tool_call>{"name": "f"', Delta(content='<tool_call>{"name": "f"')),
    (
        "qwen",
        '<tool_call>{"name": "f", "arguments": {"s": "</tool_call>"}}</tool_call>',
        Delta(calls=(ToolCall("f", '{"s": "</tool_call>"}'),)),
    ),
    (
        "qwen",
        f'<tool_call>{{"name": "a}}</tool_call>{QWEN_G}',
        Delta("", '<tool_call>{"name": "a}</tool_call>', (SECOND,)),
    ),
    ("llama3", LLAMA_F, Delta(calls=(CALL,))),
    ("llama3", f"\n{LLAMA_F}; {LLAMA_G}", Delta(calls=(CALL, SECOND))),
    ("llama3", f"Wait.<|python_tag|>{LLAMA_F}", Delta(content="Wait.", calls=(CALL,))),
    ("llama3", '{"a": 1}', Delta(content='{"a": 1}')),
    ("llama3", '{"name": "nobody", "parameters": {}}', Delta(content='{"name": "nobody", "parameters": {}}')),
    ("llama3", '{"name": "f", "age": 3} is he', Delta(content='{"name": "f", "age": 3} is he')),
    ("llama3", "<|python_tag|>search.call(q=1)", Delta(content="<|python_tag|>search.call(q=1)")),
    ("deepseek_v3", "Hm.\n" + DS.format(DS_F + "\n" + DS_G), Delta(content="Hm.", calls=(CALL, SECOND))),
    ("deepseek_v3", DS.format(DS_F).removesuffix("<｜tool▁calls▁end｜>"), Delta(calls=(CALL,))),
    ("deepseek_v3", DS.format("no"), Delta(content=DS.format("no"))),
    ("glm4", f"<think>x</think>ok{GLM_F}\n{GLM_G}", Delta("x", "ok", (CALL, SECOND))),
    ("glm4", "<tool_call>{no}</tool_call>", Delta(content="<tool_call>{no}</tool_call>")),
]


def parse(form: str, pieces: Sequence[str], **options: Any) -> Delta:
    parser = AnswerParser(FORMS[form], TOOLS, **options)
    deltas = [*(parser.feed(piece) for piece in pieces), parser.end()]
    return Delta(
        "".join(delta.reasoning for delta in deltas),
        "".join(delta.content for delta in deltas),
        tuple(call for delta in deltas for call in delta.calls),
    )


@pytest.mark.parametrize(("form", "text", "expected"), WHOLE)
def test_an_answer_is_read_whole_and_letter_by_letter(form: str, text: str, expected: Delta) -> None:
    assert parse(form, [text]) == expected
    assert parse(form, list(text)) == expected


PARTS = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>", "<arg_key>", "</arg_key>"),
        *("<arg_value>", "</arg_value>", DS_F, DS_G, QWEN_F, QWEN_G, GLM_F, GLM_G, LLAMA_F, LLAMA_G, DS.format(DS_F)),
        *(
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "\n",
            " ",
            "{",
            "}",
            '{"name": "f',
            '"',
            "\\",
            ";",
            "f",
            "<",
        ),
        *("tru", "-1.5", "\\u00e4", "é", "🙂", "<tool", "call>", "</thi"),
    ]
)
TEXTS = st.lists(PARTS, max_size=10).map("".join)


@given(text=TEXTS, form=st.sampled_from(sorted(FORMS)), is_thinking=st.booleans(), cuts=st.lists(st.integers(0, 400)))
def test_any_cut_gives_the_same(text: str, form: str, is_thinking: bool, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    whole = parse(form, [text], is_thinking=is_thinking)
    assert parse(form, pieces, is_thinking=is_thinking) == whole
    assert parse(form, list(text), is_thinking=is_thinking) == whole


@given(text=TEXTS, form=st.sampled_from(sorted(FORMS)))
def test_what_is_no_call_is_not_lost(text: str, form: str) -> None:
    read = parse(form, [text])
    if not read.calls:
        told = read.reasoning + read.content
        rest = iter("".join(text.split()))
        assert all(letter in rest for letter in "".join(told.split()))
        missing = len("".join(text.split())) - len("".join(told.split()))
        assert missing <= len("<think></think>")


def test_text_passes_at_once_and_only_a_possible_marker_waits() -> None:
    parser = AnswerParser(FORMS["qwen"], TOOLS)
    assert parser.feed("Hello") == Delta(content="Hello")
    assert parser.feed(" <too") == Delta()
    assert parser.feed("ls> and") == Delta(content=" <tools> and")
    parser = AnswerParser(FORMS["qwen"], TOOLS)
    assert parser.feed("<thi") == Delta()
    assert parser.feed("nk>ab</") == Delta(reasoning="ab")
    assert parser.feed("b>") == Delta(reasoning="</b>")
    parser = AnswerParser(FORMS["llama3"], TOOLS)
    assert parser.feed('{"na') == Delta()
    assert parser.feed('tion": 1') == Delta(content='{"nation": 1')


def test_thinking_that_the_prompt_opened_needs_no_marker() -> None:
    assert parse("qwen", ["why</think>so"], is_thinking=True) == Delta("why", "so")
    assert parse("qwen", ["<think>why</think>so"], is_thinking=True) == Delta("why", "so")
    assert parse("qwen", ["why</think>so"]) == Delta(content="why</think>so")
    assert parse("qwen", ["<think>a</think>b"], parses_reasoning=False) == Delta(content="<think>a</think>b")


def test_without_a_form_calls_are_content() -> None:
    parser = AnswerParser(None)
    assert parser.feed(f"<think>a</think>{QWEN_F}") == Delta("a", QWEN_F)
    assert parser.end() == Delta()


@given(pieces=st.lists(st.sampled_from(["<|e", "nd|>", "<|end|>", "<", "|", "x", "<|end", "é"]), max_size=12))
def test_control_tokens_are_taken_out_however_the_text_is_cut(pieces: list[str]) -> None:
    shown = SpecialTextFilter(["<|end|>", ""])
    text = "".join(pieces)
    assert "".join([*(shown.feed(piece) for piece in pieces), shown.end()]) == text.replace("<|end|>", "")


def test_the_form_is_told_from_a_rendered_call() -> None:
    assert detect_form(QWEN_F) == "qwen"
    assert detect_form(GLM_F) == "glm4"
    assert detect_form(DS.format(DS_F)) == "deepseek_v3"
    assert detect_form(f"<|start_header_id|>assistant<|end_header_id|>{LLAMA_F}") == "llama3"
    assert detect_form("plain") is None
