"""The design's table of exact cases, whole: matcher, renderer and trace, against Qwen3 ids written down beforehand."""

from __future__ import annotations

from typing import Any

import pytest
from exact_cases import START, coalesced, linear, retried, summarised, tool_dropped
from qwen3_vectors import LINEAR, RETRIED, SUMMARISED, THINKING_STRIPPED, TOOL_DROPPED
from tito_kit import Agent, runs


def expect(agent: Agent, expected: list[tuple[str, list[int]]], **options: Any) -> None:
    rows = agent.rows(**options)
    assert [(runs(mask), ids) for ids, mask in rows] == expected
    for branch in agent.trace.branches(**options):
        assert len(branch.token_ids) == len(branch.loss_mask) == len(branch.logprobs)
        assert [bool(logprob) for logprob in branch.logprobs] == [bool(bit) for bit in branch.loss_mask]


def test_three_turns_are_one_sequence() -> None:
    agent = linear()
    expect(agent, LINEAR)
    assert runs(agent.rows()[0][1]) == "c17 T22 c15 T22 c15 T9"
    assert [prompt.how for prompt in agent.prompts] == ["render", "bridge", "bridge"]


def test_a_dropped_tool_message_starts_a_branch_at_the_assistant_turn() -> None:
    agent = tool_dropped()
    expect(agent, TOOL_DROPPED)
    assert agent.prompts[-1].anchor_node_id == 2
    last = agent.trace.nodes[-1].turn
    assert last is not None
    assert last.reused_tokens == 39


def test_a_summary_starts_a_second_sequence_and_leaves_the_first_alone() -> None:
    expect(summarised(), SUMMARISED)


@pytest.mark.parametrize("matcher", ["strict", "loose_tool_call"])
def test_stripped_thinking_splits_each_turn_when_it_counts(matcher: str) -> None:
    expect(linear(matcher, thinks=False), THINKING_STRIPPED)


def test_stripped_thinking_changes_nothing_when_it_is_optional() -> None:
    expect(linear("reasoning_optional", thinks=False), LINEAR)


def test_a_recorded_retry_is_a_branch_of_its_own_that_can_be_dropped() -> None:
    agent = retried()
    expect(agent, RETRIED)
    assert [branch.is_abandoned for branch in agent.trace.branches()] == [True, False]
    expect(agent, RETRIED[1:], drop_abandoned=True)


def test_a_coalesced_retry_is_given_the_earlier_answer() -> None:
    agent = coalesced()
    retried_turn = agent.trace.prepare_turn(START)
    assert [node.node_id for node in agent.trace.answers(retried_turn)] == [2]
    expect(agent, RETRIED[1:])
