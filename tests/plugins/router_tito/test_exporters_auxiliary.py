"""Which calls of an agent are auxiliary: titles and summaries are, sub-agents, plans and last answers are not."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest
from router_tito.errors import ExportError
from router_tito.exporters import AuxiliaryRules, Export, ExportOptions, TraceOutcome, export
from router_tito.trace import Trace
from router_tito.views import BranchView
from tito_kit import answer, assistant, system, tool, user

TOOLS = [{"type": "function", "function": {"name": "bash"}}]
CODER, TITLER = system("You are a coder."), system("Give this conversation a title.")


class Session:
    """Calls of one agent: what is sent, and an answer of one token."""

    def __init__(self) -> None:
        self.trace = Trace()

    def call(self, messages: list[dict[str, Any]], said: str, tools: Any = None) -> int:
        turn = self.trace.prepare_turn(messages, tools)
        prompt = [token for message in messages for token in _ids(message)]
        result = answer(_ids(assistant(said)), assistant(said), [*([9] if tools else []), *prompt])
        return self.trace.commit(turn, result).node_id

    def loop(self, tools: Any = TOOLS, *, system_prompt: dict[str, Any] = CODER, rounds: int = 2) -> None:
        """The agent's own conversation."""
        messages = [system_prompt, user("Mend it.")]
        for number in range(rounds):
            self.call(messages, f"step {number}", tools)
            messages += [assistant(f"step {number}"), tool(f"result {number}")]

    def export(self, rules: AuxiliaryRules | None = None, **options: Any) -> Export:
        options.setdefault("auxiliary", rules or AuxiliaryRules())
        return export(TraceOutcome(self.trace, "t"), ExportOptions(**options))

    def left_out(self, rules: AuxiliaryRules | None = None) -> dict[int, str]:
        return {left.branch_id: left.why for left in self.export(rules).left_out}


def _ids(message: dict[str, Any]) -> list[int]:
    """One token that tells messages apart."""
    return [crc32(f"{message['role']} {message['content']}".encode()) >> 1]


def test_a_title_is_left_out_and_the_conversation_is_not() -> None:
    session = Session()
    title = session.call([TITLER, user("Mend it.")], "Mending")
    session.loop()
    made = session.export()
    assert [len(row.turns) for row in made.rows] == [2]
    assert [(left.branch_id, left.why) for left in made.left_out] == [(title, "auxiliary call: no_tools")]
    assert made.reasons == []


def test_a_title_is_known_by_its_system_prompt_where_nobody_has_tools() -> None:
    session = Session()
    title = session.call([TITLER, user("Mend it.")], "Mending")
    session.loop(tools=None)
    assert session.left_out() == {title: "auxiliary call: other_system"}


def test_a_title_at_the_end_is_one_too() -> None:
    session = Session()
    session.loop()
    title = session.call([TITLER, user("Mend it.")], "Mending")
    assert session.left_out() == {title: "auxiliary call: no_tools"}


def test_a_summary_with_a_prompt_of_its_own_is_left_out() -> None:
    session = Session()
    session.loop()
    history = [user("Mend it."), assistant("step 0"), tool("result 0"), user("Summarise.")]
    summary = session.call([system("You summarise."), *history], "summary")
    session.call([CODER, user("Mend it. So far: summary")], "step 2", TOOLS)
    assert session.left_out() == {summary: "auxiliary call: no_tools"}


def test_asked_for_they_are_rows_whose_turns_are_tagged() -> None:
    session = Session()
    session.call([TITLER, user("Mend it.")], "Mending")
    session.loop()
    made = session.export(keep_auxiliary=True)
    assert [[turn.auxiliary for turn in row.turns] for row in made.rows] == [["no_tools"], [None, None]]
    assert made.left_out == []


# -- what is none ----------------------------------------------------------------------------------------------
def test_a_summary_within_the_conversation_is_the_models_work() -> None:
    session = Session()
    session.loop()
    history = [CODER, user("Mend it."), assistant("step 0"), tool("result 0"), assistant("step 1"), user("Summarise.")]
    session.call(history, "summary", TOOLS)
    session.call([CODER, user("Mend it. So far: summary")], "step 2", TOOLS)
    assert session.left_out() == {}


def test_a_sub_agent_is_none_whether_it_goes_on_or_answers_at_once() -> None:
    session = Session()
    session.loop(rounds=3)
    searcher = system("You search.")
    session.loop(system_prompt=searcher)
    session.call([searcher, user("Find y.")], "found", TOOLS)
    assert session.left_out() == {}


def test_a_plan_made_without_tools_is_none_when_the_agent_goes_on_with_it() -> None:
    session = Session()
    session.loop()
    history = [CODER, user("Mend it."), assistant("step 0"), tool("result 0"), user("Plan.")]
    session.call(history, "the plan")
    session.call([*history, assistant("the plan"), user("Go.")], "step 2", TOOLS)
    assert session.left_out() == {}


def test_a_last_answer_without_tools_is_none() -> None:
    """That is how agents end that have used up their steps."""
    session = Session()
    session.loop()
    history = [CODER, user("Mend it."), assistant("step 0"), tool("result 0"), user("Out of steps: answer now.")]
    session.call(history, "the answer")
    assert session.left_out() == {}


def test_where_no_conversation_goes_on_nothing_is_left_out() -> None:
    session = Session()
    session.call([TITLER, user("a")], "A")
    session.call([CODER, user("b")], "B", TOOLS)
    session.call([system("else"), user("c")], "C")
    assert session.left_out() == {}
    assert len(session.export().rows) == 3


# -- rules ------------------------------------------------------------------------------------------------------
def test_without_rules_nothing_is_left_out() -> None:
    session = Session()
    session.call([TITLER, user("Mend it.")], "Mending")
    session.loop()
    assert session.left_out(AuxiliaryRules(())) == {}


@pytest.mark.parametrize("pattern", ["title", "^Mend", r"(?i)GIVE THIS"])
def test_a_pattern_is_searched_in_what_a_lone_call_asks(pattern: str) -> None:
    session = Session()
    title = session.call([TITLER, user("Mend it.")], "Mending")
    assert session.left_out(AuxiliaryRules((), [pattern])) == {title: f"auxiliary call: {pattern}"}
    made = session.export(AuxiliaryRules((), [pattern]))
    assert made.reasons == ["every branch was left out"]
    session.loop()
    assert session.left_out(AuxiliaryRules((), [pattern])) == {title: f"auxiliary call: {pattern}"}


def is_short(lone: BranchView, main: BranchView) -> bool:
    """A rule of a user's own."""
    return len(lone.token_ids) < 4


def test_a_rule_of_ones_own_is_a_dotted_path() -> None:
    session = Session()
    session.loop()
    title = session.call([user("hm")], "?", TOOLS)
    assert session.left_out() == {}
    name = f"{__name__}:is_short"
    assert session.left_out(AuxiliaryRules([name])) == {title: f"auxiliary call: {name}"}


@pytest.mark.parametrize(
    ("rules", "patterns", "told"),
    [
        (["titles"], [], "'titles': one of no_tools, other_system, or a dotted path"),
        (["no.such:rule"], [], "'no.such:rule'"),
        (["math:pi"], [], "'math:pi' is not callable"),
        ([], ["("], "no regular expression"),
    ],
)
def test_a_rule_that_is_none_is_refused(rules: list[str], patterns: list[str], told: str) -> None:
    with pytest.raises(ExportError, match=told):
        AuxiliaryRules(rules, patterns)
