"""Lines save walking the graph, and must find the very same; random sessions: test_properties, test_edit_scripts."""

from __future__ import annotations

from typing import Any

from router_tito.lines import MAX_LINES
from router_tito.trace import Trace
from tito_kit import answer, assistant, call, system, user

START = [system("s"), user("q")]


def grown(trace: Trace, messages: list[dict[str, Any]], ids: list[int], said: dict[str, Any]) -> int:
    turn = trace.prepare_turn(messages)
    known = list(trace.graph.token_ids(turn.path[-1])) if turn.path else []
    return trace.commit(turn, answer(ids, said, [*known, 1])).node_id


def test_a_history_that_goes_on_is_found_in_one_step() -> None:
    trace = Trace()
    messages = list(START)
    for number in range(5):
        node_id = grown(trace, messages, [10 + number], assistant(str(number)))
        messages += [assistant(str(number)), user("more")]
    turn = trace.prepare_turn(messages)
    assert turn.match.count == len(messages) - 1 == len(turn.path)
    assert turn.path[-1] == node_id
    assert len(trace.graph.lines._lines) == 1


def test_an_answer_that_comes_back_in_other_words_is_compared_once() -> None:
    trace = Trace()
    grown(trace, START, [10], assistant("a", extra=1))
    sent = [*START, {"content": "a", "role": "assistant", "own": "x"}, user("more")]
    assert trace.prepare_turn(sent).match.count == 2
    grown(trace, sent, [11], assistant("b"))
    turn = trace.prepare_turn([*sent, assistant("b"), user("on")])
    assert (turn.match.count, len(turn.path)) == (5, 5)


def test_of_twins_the_one_that_was_delivered_is_gone_on_from_though_the_other_is_newer() -> None:
    trace = Trace()
    first = grown(trace, START, [10], assistant("a"))
    second = grown(trace, START, [11], assistant("a"))
    trace.mark_delivered(first)
    assert trace.prepare_turn([*START, assistant("a"), user("more")]).path[-1] == first != second


def test_numbers_that_do_not_count_do_not_slow_a_line_down() -> None:
    """Agents that gather a stream send the index of each call back."""
    trace = Trace()
    calling = assistant(None, tool_calls=[{**call("f", "{}"), "index": 0}], weight=1)
    grown(trace, [*START, calling, user("more")], [10], assistant("a"))
    turn = trace.prepare_turn([*START, calling, user("more"), assistant("a"), user("on")])
    assert turn.match.count == len(turn.path) == 5


def test_true_is_not_one() -> None:
    trace = Trace()
    calling = assistant(None, tool_calls=[call("f", {"x": 1})])  # type: ignore[arg-type]  # agents send that, too
    grown(trace, [*START, calling, user("more")], [10], assistant("a"))
    other = assistant(None, tool_calls=[call("f", {"x": True})])  # type: ignore[arg-type]
    assert len(trace.prepare_turn([*START, other, user("more"), assistant("a"), user("on")]).path) == 2


def test_two_answers_that_go_on_from_one_keep_their_own_tokens() -> None:
    trace = Trace()
    grown(trace, START, [10], assistant("a"))
    asked = [*START, assistant("a"), user("more")]
    turns = [trace.prepare_turn(asked) for _ in range(2)]
    prompt = [1, 10, 2]
    nodes = [trace.commit(turn, answer([20 + at], assistant("b"), prompt)).node_id for at, turn in enumerate(turns)]
    assert [list(trace.graph.token_ids(node_id)) for node_id in nodes] == [[*prompt, 20], [*prompt, 21]]


def test_only_the_newest_lines_are_kept_and_counted() -> None:
    trace = Trace()
    for number in range(MAX_LINES + 3):
        grown(trace, [system(str(number)), user("q")], [10, 11], assistant("a"))
    assert len(trace.graph.lines._lines) == MAX_LINES
    assert trace.nbytes - trace.graph.node_bytes == trace.graph.lines.nbytes > 0
    assert len(trace.prepare_turn([system("0"), user("q"), assistant("a"), user("more")]).path) == 3
