from __future__ import annotations

from router_tito.trace import Trace
from tito_kit import answer, assistant, runs, tool, user

ASK = [user("q")]


def build() -> Trace:
    """Three answers to one question; the second is gone on from twice (a tool result, then another one)."""
    trace = Trace()
    for number in range(3):
        facts = {"model": "m", "weight_version": f"v{number}"}
        trace.commit(trace.prepare_turn(ASK), answer([10 + number], assistant(f"a{number}"), [1, 2], **facts))
    for number in range(2):
        history = [*ASK, assistant("a1"), tool(f"r{number}")]
        trace.commit(trace.prepare_turn(history), answer([20 + number], assistant("b"), [1, 2, 11, 3, 4 + number]))
    return trace


def test_branches_come_in_the_order_of_their_leaves_and_train_each_token_once() -> None:
    branches = build().branches()
    assert [(list(branch.token_ids), runs(branch.loss_mask)) for branch in branches] == [
        ([1, 2, 10], "c2 T1"),
        ([1, 2, 12], "c2 T1"),
        ([1, 2, 11, 3, 4, 20], "c2 T1 c2 T1"),
        ([1, 2, 11, 3, 5, 21], "c5 T1"),
    ]
    assert runs(branches[3].sampled_mask) == "c2 T1 c2 T1"
    assert list(branches[3].logprobs) == [0.0] * 5 + [-1 / 64]
    assert [branch.is_abandoned for branch in branches] == [True, True, False, False]


def test_dropping_abandoned_answers_keeps_what_was_gone_on_from() -> None:
    rows = [(list(branch.token_ids), runs(branch.loss_mask)) for branch in build().branches(drop_abandoned=True)]
    assert rows == [([1, 2, 11, 3, 4, 20], "c2 T1 c2 T1"), ([1, 2, 11, 3, 5, 21], "c5 T1")]


def test_when_nothing_was_gone_on_from_the_last_answer_is_kept_unless_it_was_abandoned() -> None:
    trace = Trace()
    nodes = [trace.commit(trace.prepare_turn(ASK), answer([10 + n], assistant(f"a{n}"), [1])).node_id for n in range(3)]
    assert [branch.branch_id for branch in trace.branches(drop_abandoned=True)] == nodes[2:]
    trace.abandon(nodes[2])
    assert [branch.branch_id for branch in trace.branches(drop_abandoned=True)] == nodes[1:2]


def test_dropping_an_abandoned_leaf_leaves_the_turns_before_it_trained() -> None:
    trace = Trace()
    trace.commit(trace.prepare_turn(ASK), answer([10], assistant("a"), [1]))
    last = trace.commit(trace.prepare_turn([*ASK, assistant("a"), tool("r")]), answer([20], assistant("b"), [1, 10, 2]))
    trace.abandon(last.node_id)
    (branch,) = trace.branches(drop_abandoned=True)
    assert (list(branch.token_ids), runs(branch.loss_mask)) == ([1, 10], "c1 T1")
    assert trace.nodes[branch.branch_id].is_sampled


def test_transitions_are_the_calls_as_they_were_made() -> None:
    trace = build()
    branch = trace.branches()[2]
    first, second = trace.transitions(branch)
    assert (list(first.prompt_ids), list(first.completion_ids)) == ([1, 2], [11])
    assert (list(second.prompt_ids), list(second.completion_ids)) == ([1, 2, 11, 3, 4], [20])
    assert (first.model, first.finish_reason, list(first.logprobs)) == ("m", "stop", [-1 / 64])
    assert (second.messages, second.message) == ([*ASK, assistant("a1"), tool("r0")], assistant("b"))
    assert second.is_exact_extension_of(first)
    assert not first.is_exact_extension_of(second)
    assert not second.is_exact_extension_of(trace.branches()[0].transitions[0])
    assert branch.weight_versions == ["v1", None]
    assert first.tools_hash == second.tools_hash
    assert (first.tools, second.node_ids) == ((), branch.node_ids)


def test_a_turn_that_was_not_captured_marks_what_it_went_on_from_and_what_holds_its_answer() -> None:
    trace = Trace()
    trace.commit(trace.prepare_turn(ASK), answer([10], assistant("a"), [1]))
    lost = assistant("lost")
    trace.mark_untrainable(trace.prepare_turn([*ASK, assistant("a"), tool("r")]), "no_ids", {"content": "lost"})
    assert trace.branches()[0].reasons == ["turn 2 was not captured: no_ids"]
    history = [*ASK, assistant("a"), tool("r"), lost, user("more")]
    trace.commit(trace.prepare_turn(history), answer([20], assistant("b"), [1, 10, 2, 3, 4]))
    (branch,) = trace.branches()
    assert branch.reasons == ["turn 2 was not captured: no_ids"]
    assert runs(branch.loss_mask) == "c1 T1 c3 T1"
    trace.commit(trace.prepare_turn([user("else")]), answer([30], assistant("c"), [9]))
    assert [branch.is_complete for branch in trace.branches()] == [False, True]


def test_a_turn_that_was_not_captured_but_tried_again_leaves_no_mark() -> None:
    trace = Trace()
    trace.commit(trace.prepare_turn(ASK), answer([10], assistant("a"), [1]))
    history = [*ASK, assistant("a"), tool("r")]
    trace.mark_untrainable(trace.prepare_turn(history), "no_ids")
    assert [turn.turn_id for turn in trace.lost] == [2]
    trace.commit(trace.prepare_turn(history), answer([20], assistant("b"), [1, 10, 2]))
    assert trace.branches()[0].is_complete
    assert trace.lost == []
