import json

from hypothesis import given
from hypothesis import strategies as st

from router_core.reference_engine.answer_parser import AnswerParser, Parsed

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'


def parse(text: str, *, is_thinking: bool = True, parses_tools: bool = True) -> Parsed:
    return AnswerParser(is_thinking, parses_tools).add(text, is_last=True)


def test_thinking_needs_no_opening_tag() -> None:
    for text in ("<think>\nhmm\n</think>\n\nhello", "\nhmm\n</think>\n\nhello"):
        parsed = parse(text)
        assert (parsed.reasoning, parsed.content) == ("\nhmm\n", "\n\nhello")


def test_an_unfinished_thought_is_all_thinking() -> None:
    assert parse("hmm, so </thi").reasoning == "hmm, so </thi"


def test_without_thinking_tags_are_content() -> None:
    assert parse("a</think>b", is_thinking=False).content == "a</think>b"


def test_calls_are_taken_out_of_the_content() -> None:
    parsed = parse("hmm</think>\n\nLet me see.\n" + CALL + "\n" + CALL)
    assert parsed.content == "\n\nLet me see."
    assert [(call.name, json.loads(call.arguments)) for call in parsed.tool_calls] == [("bash", {"command": "ls"})] * 2
    assert len({call.id for call in parsed.tool_calls}) == 2


def test_a_call_ends_thinking() -> None:
    parsed = parse("<think>\nhmm\n" + CALL)
    assert (parsed.reasoning, parsed.content, len(parsed.tool_calls)) == ("\nhmm\n", "", 1)


def test_a_broken_or_unfinished_call_stays_content() -> None:
    for broken in (
        "<tool_call>\n{oops}\n</tool_call>",
        '<tool_call>\n{"name": "ba',
        '<tool_call>\n{"arguments": {}}</tool_call>',
    ):
        parsed = parse("a " + broken, is_thinking=False)
        assert (parsed.content.replace(" ", ""), parsed.tool_calls) == (("a" + broken).replace(" ", ""), [])


def test_calls_are_left_alone_without_tools() -> None:
    assert parse("a " + CALL, is_thinking=False, parses_tools=False).content == "a " + CALL


pieces = st.lists(st.sampled_from(["<think>", "</think>", CALL, "<tool_call>", "a", " ", "\n", "<", "</"]), max_size=8)


@given(pieces, st.booleans(), st.booleans(), st.integers(1, 5))
def test_pieces_add_up_to_the_whole(parts: list[str], is_thinking: bool, parses_tools: bool, size: int) -> None:
    text = "".join(parts)
    whole = parse(text, is_thinking=is_thinking, parses_tools=parses_tools)
    parser = AnswerParser(is_thinking, parses_tools)
    told = [parser.add(text[start : start + size]) for start in range(0, len(text), size)]
    told.append(parser.add("", is_last=True))
    assert "".join(piece.reasoning for piece in told) == whole.reasoning
    assert "".join(piece.content for piece in told) == whole.content
    assert sum(len(piece.tool_calls) for piece in told) == len(whole.tool_calls)
