"""The design's table of exact cases, whole: matcher, renderer and trace, against Qwen3 ids written down beforehand."""

from __future__ import annotations

from typing import Any

import pytest
from qwen3_vectors import LINEAR, RETRIED, SUMMARISED, THINKING_STRIPPED, TOOL_DROPPED
from tito_kit import Agent, Qwen3Cut, assistant, call, runs, system, tool, user

# fmt: off
T1 = [
    151667, 198, 83, 16, 198, 151668, 271,
    151657, 198, 4913, 606, 3252, 69, 2198, 16370, 22317, 87, 788, 16, 11248, 151658, 151645,
]
# fmt: on
T2 = [17 if token == 16 else token for token in T1]
DONE = [151667, 198, 83, 18, 198, 151668, 271, 10438, 151645]
SUM = [151667, 198, 83, 24, 198, 151668, 271, 1242, 151645]
START = [system("S."), user("q1")]


def calling(number: int, *, thinks: bool = True) -> dict[str, Any]:
    reasoning = {"reasoning_content": f"t{number}"} if thinks else {}
    return assistant(None, tool_calls=[call("f", f'{{"x":{number}}}', f"c{number}")], **reasoning)


def expect(agent: Agent, expected: list[tuple[str, list[int]]], **options: Any) -> None:
    rows = agent.rows(**options)
    assert [(runs(mask), ids) for ids, mask in rows] == expected
    for branch in agent.trace.branches(**options):
        assert len(branch.token_ids) == len(branch.loss_mask) == len(branch.logprobs)
        assert [bool(logprob) for logprob in branch.logprobs] == [bool(bit) for bit in branch.loss_mask]


def linear(agent: Agent, *, thinks: bool = True) -> None:
    messages = list(START)
    agent.ask(messages, T1, calling(1))
    messages += [calling(1, thinks=thinks), tool("r1", "c1")]
    agent.ask(messages, T2, calling(2))
    messages += [calling(2, thinks=thinks), tool("r2", "c2")]
    agent.ask(messages, DONE, assistant("done", reasoning_content="t3"))


def test_three_turns_are_one_sequence() -> None:
    agent = Agent(Qwen3Cut())
    linear(agent)
    expect(agent, LINEAR)
    assert runs(agent.rows()[0][1]) == "c17 T22 c15 T22 c15 T9"
    assert [prompt.how for prompt in agent.prompts] == ["render", "bridge", "bridge"]


def test_a_dropped_tool_message_starts_a_branch_at_the_assistant_turn() -> None:
    agent = Agent(Qwen3Cut())
    agent.ask(START, T1, calling(1))
    agent.ask([*START, calling(1), tool("r1"), tool("r2")], T2, calling(2))
    result = agent.ask([*START, calling(1), tool("r1")], DONE, assistant("done", reasoning_content="t3"))
    expect(agent, TOOL_DROPPED)
    assert (agent.prompts[-1].anchor_node_id, result.reused_tokens) == (2, 39)


def test_a_summary_starts_a_second_sequence_and_leaves_the_first_alone() -> None:
    agent = Agent(Qwen3Cut())
    agent.ask(START, T1, calling(1))
    agent.ask([*START, calling(1), tool("r1")], T2, calling(2))
    history = [*START, calling(1), tool("r1"), calling(2), tool("r2"), user("Summarize.")]
    agent.ask(history, SUM, assistant("sum", reasoning_content="t9"))
    agent.ask([system("S."), user("q1\n\nSummary: sum")], DONE, assistant("done", reasoning_content="t3"))
    expect(agent, SUMMARISED)


@pytest.mark.parametrize("matcher", ["strict", "loose_tool_call"])
def test_stripped_thinking_splits_each_turn_when_it_counts(matcher: str) -> None:
    agent = Agent(Qwen3Cut(), matchers=[matcher])
    linear(agent, thinks=False)
    expect(agent, THINKING_STRIPPED)


def test_stripped_thinking_changes_nothing_when_it_is_optional() -> None:
    agent = Agent(Qwen3Cut(), matchers=["reasoning_optional"])
    linear(agent, thinks=False)
    expect(agent, LINEAR)


def test_a_recorded_retry_is_a_branch_of_its_own_that_can_be_dropped() -> None:
    agent = Agent(Qwen3Cut())
    agent.ask(START, T1, calling(1))
    agent.ask(START, T2, calling(2))
    agent.ask([*START, calling(2), tool("r2", "c2")], DONE, assistant("done", reasoning_content="t3"))
    expect(agent, RETRIED)
    assert [branch.is_abandoned for branch in agent.trace.branches()] == [True, False]
    expect(agent, RETRIED[1:], drop_abandoned=True)


def test_a_coalesced_retry_is_given_the_earlier_answer() -> None:
    agent = Agent(Qwen3Cut())
    first = agent.ask(START, T2, calling(2))
    retried = agent.trace.prepare_turn(START)
    assert [node.node_id for node in agent.trace.answers(retried)] == [first.node_id]
    agent.ask([*START, calling(2), tool("r2", "c2")], DONE, assistant("done", reasoning_content="t3"))
    expect(agent, RETRIED[1:])
