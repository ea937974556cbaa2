from __future__ import annotations

import gc
import tracemalloc
from array import array
from typing import Any

import pytest
from router_tito.errors import MessageError, TokenMismatchError, TraceError, TurnRefusedError
from router_tito.intake import message_ends
from router_tito.matcher import Matcher
from router_tito.trace import Trace
from tito_kit import answer, assistant, call, row, runs, system, tool, user

START = [system("s"), user("q")]
PROMPT = [1, 2, 3, 4, 5]
INDICES = [0, 0, 1, 1, -1]


def first_turn(trace: Trace, ids: list[int] | None = None, message: Any = None, **fields: Any) -> int:
    turn = trace.prepare_turn(START)
    fields.setdefault("prompt_message_indices", INDICES)
    result = answer(ids or [10, 11], message or assistant("a"), PROMPT, **fields)
    return trace.commit(turn, result).node_id


def test_tokens_go_to_the_messages_they_are_labelled_with_and_the_rest_heads_the_answer() -> None:
    trace = Trace()
    first_turn(trace)
    assert [list(node.token_ids) for node in trace.nodes] == [[1, 2], [3, 4], [5, 10, 11]]
    assert [node.sampled_start for node in trace.nodes] == [2, 2, 1]
    assert [(node.start, node.end, node.depth, node.anchor_id) for node in trace.nodes] == [
        (0, 2, 1, -1),
        (2, 4, 2, -1),
        (4, 7, 3, 2),
    ]


def test_a_turn_that_goes_on_matches_its_history_and_adds_only_what_is_new() -> None:
    trace = Trace()
    node_id = first_turn(trace)
    turn = trace.prepare_turn([*START, assistant("a"), user("more")])
    assert (turn.path, turn.anchor_node_id, turn.tail) == ((0, 1, 2), node_id, (user("more"),))
    assert turn.bridge_anchor() == (array("i", PROMPT), array("i", [10, 11]))
    result = answer(
        [12], assistant("b"), [*PROMPT, 10, 11, 6, 7], prompt_message_indices=[0] * 7 + [3, -1], how="bridge"
    )
    committed = trace.commit(turn, result)
    assert (committed.reused_tokens, committed.new_tokens, committed.how) == (7, 3, "bridge")
    (branch,) = trace.branches()
    assert row(branch) == ([*PROMPT, 10, 11, 6, 7, 12], [0, 0, 0, 0, 0, 1, 1, 0, 0, 1])
    assert [message["content"] for message in branch.messages] == ["s", "q", "a", "more", "b"]


def test_the_anchor_is_the_last_sampled_message_though_more_matched() -> None:
    trace = Trace()
    first_turn(trace)
    history = [*START, assistant("a"), tool("r1"), tool("r2")]
    trace.commit(trace.prepare_turn(history), answer([12], assistant("b"), [*PROMPT, 10, 11, 6]))
    turn = trace.prepare_turn([*START, assistant("a"), tool("r1"), user("stop")])
    assert (len(turn.path), turn.anchor_node_id) == (4, 2)
    assert turn.tail == (user("stop"),)
    assert turn.bridge_tail == [tool("r1"), user("stop")]


def test_a_prompt_that_is_not_the_stored_one_starts_a_branch_where_it_differs() -> None:
    trace = Trace()
    first_turn(trace)
    turn = trace.prepare_turn([*START, assistant("a"), user("more")])
    prompt = [1, 2, 3, 4, 5, 10, 99, 7]
    committed = trace.commit(
        turn, answer([12], assistant("b"), prompt, prompt_message_indices=[0, 0, 1, 1, 2, 2, 3, 3])
    )
    assert (committed.reused_tokens, committed.how) == (4, "reuse")
    assert [row(branch) for branch in trace.branches()] == [
        ([*PROMPT, 10, 11], [0, 0, 0, 0, 0, 1, 1]),
        ([*prompt, 12], [0, 0, 0, 0, 0, 0, 0, 0, 1]),
    ]
    assert len(trace.graph.twins(1, Matcher().key(assistant("a")).hash, turn.context)) == 2


def test_a_turn_of_the_same_tokens_goes_on_from_the_sampled_twin_not_from_its_copy() -> None:
    trace = Trace()
    copy = [*START, assistant("a"), user("more")]
    labels = [0, 0, 1, 1, 2, 2, 2, 3]
    result = answer([12], assistant("b"), [*PROMPT, 10, 11, 6], prompt_message_indices=labels)
    trace.commit(trace.prepare_turn(copy), result)
    sampled = first_turn(trace)
    turn = trace.prepare_turn([*START, assistant("a"), user("other")])
    assert turn.anchor_node_id == sampled
    trace.commit(turn, answer([13], assistant("c"), [*PROMPT, 10, 11, 7]))
    assert [runs(branch.loss_mask) for branch in trace.branches()] == ["c8 T1", "c5 T2 c1 T1"]


def test_reuse_that_is_claimed_must_be_true() -> None:
    trace = Trace()
    first_turn(trace)
    turn = trace.prepare_turn([*START, assistant("a"), user("more")])
    before = trace.to_dict()
    with pytest.raises(TokenMismatchError, match="token 6 is the first other one") as raised:
        trace.commit(turn, answer([12], assistant("b"), [*PROMPT, 10, 99, 7], reused_prefix_length=7))
    assert raised.value.position == 6
    assert trace.to_dict() == {**before, "refused": {"token_mismatch": 1}}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"finish_reason": "abort"}, "aborted"),
        ({"finish_reason": "error"}, "failed"),
        ({"finish_reason": ""}, "unfinished"),
        ({"ids": []}, "empty"),
        ({"logprobs": None}, "logprobs_missing"),
        ({"logprobs": [-1.0]}, "logprobs_missing"),
        ({"logprobs": [None, -1.0]}, "logprobs_missing"),
        ({"prompt": []}, "bad_ids"),
        ({"prompt": [1, 2, 3, 4, -1]}, "bad_ids"),
        ({"ids": [5, 1.5]}, "bad_ids"),
        ({"prompt_message_indices": [0, 0, 1]}, "bad_indices"),
        ({"prompt_message_indices": [1, 1, 0, 0, -1]}, "bad_indices"),
        ({"prompt_message_indices": [0, 0, 1, 2, -1]}, "bad_indices"),
    ],
)
def test_an_answer_that_may_not_be_trained_on_changes_nothing_and_is_counted(
    fields: dict[str, Any], reason: str
) -> None:
    trace = Trace()
    turn = trace.prepare_turn(START)
    before = trace.to_dict()
    result = answer(fields.pop("ids", [10, 11]), assistant("a"), fields.pop("prompt", PROMPT), **fields)
    with pytest.raises(TurnRefusedError) as raised:
        trace.commit(turn, result)
    assert raised.value.reason == reason
    assert trace.to_dict() == {**before, "refused": {reason: 1}}
    assert trace.branches() == []
    first_turn(trace)
    assert len(trace.branches()) == 1


def test_a_length_cut_answer_is_kept() -> None:
    trace = Trace()
    first_turn(trace, finish_reason="length")
    (transition,) = trace.transitions(trace.branches()[0])
    assert transition.finish_reason == "length"


def test_the_same_answer_to_the_same_request_is_stored_once() -> None:
    trace = Trace()
    node_id = first_turn(trace, weight_version="v1")
    turn = trace.prepare_turn(START)
    again = trace.commit(turn, answer([10, 11], assistant("a"), PROMPT, weight_version="v1"))
    assert (again.is_repeat, again.node_id, again.new_tokens) == (True, node_id, 0)
    assert len(trace.branches()) == 1
    other_weights = trace.commit(
        trace.prepare_turn(START), answer([10, 11], assistant("a"), PROMPT, weight_version="v2")
    )
    assert not other_weights.is_repeat
    assert len(trace.branches()) == 2


def test_a_client_goes_on_from_the_twin_that_was_delivered_last_unless_it_was_abandoned() -> None:
    trace = Trace()
    first, second, third = (first_turn(trace, [10, number]) for number in (11, 12, 13))
    history = [*START, assistant("a"), user("more")]
    assert trace.prepare_turn(history).anchor_node_id == third
    trace.mark_delivered(first)
    trace.mark_delivered(second)
    assert trace.prepare_turn(history).anchor_node_id == second
    trace.abandon(second)
    assert trace.prepare_turn(history).anchor_node_id == first


def test_of_twins_the_one_that_reads_as_the_client_wrote_it_is_gone_on_from() -> None:
    trace = Trace()
    spaced, tight = (assistant(None, tool_calls=[call("f", text)]) for text in ('{"x": 1.0}', '{"x":1}'))
    first = first_turn(trace, [10, 11], spaced)
    second = first_turn(trace, [10, 12], tight)
    assert trace.prepare_turn([*START, spaced, tool("r")]).anchor_node_id == first
    assert trace.prepare_turn([*START, tight, tool("r")]).anchor_node_id == second


def test_other_tools_or_template_arguments_do_not_match() -> None:
    trace = Trace()
    first_turn(trace)
    history = [*START, assistant("a"), user("more")]
    assert len(trace.prepare_turn(history, []).path) == 3
    assert trace.prepare_turn(history, [{"name": "f"}]).path == ()
    assert trace.prepare_turn(history, None, {"enable_thinking": False}).path == ()


def test_concurrent_turns_of_one_session_become_siblings_or_roots() -> None:
    trace = Trace()
    first, second, other = trace.prepare_turn(START), trace.prepare_turn(START), trace.prepare_turn([user("else")])
    trace.commit(second, answer([20], assistant("b"), PROMPT, prompt_message_indices=INDICES))
    trace.commit(other, answer([21], assistant("c"), [7, 8]))
    trace.commit(first, answer([22], assistant("d"), PROMPT, prompt_message_indices=INDICES))
    assert [row(branch) for branch in trace.branches()] == [
        ([*PROMPT, 20], [0, 0, 0, 0, 0, 1]),
        ([7, 8, 21], [0, 0, 1]),
        ([*PROMPT, 22], [0, 0, 0, 0, 0, 1]),
    ]
    assert len(trace.graph.children(-1)) == 2


def test_the_client_may_change_its_messages_afterwards() -> None:
    trace = Trace()
    messages: list[dict[str, Any]] = [user("q")]
    reply = assistant("a", tool_calls=[call("f", "{}")])
    turn = trace.prepare_turn(messages)
    messages[0]["content"] = "changed"
    ids = array("i", [5, 6])
    trace.commit(turn, answer(ids, reply, [1, 2]))
    reply["tool_calls"][0]["function"]["name"] = "changed"
    ids[0] = 99
    (branch,) = trace.branches()
    assert [branch.messages[0]["content"], branch.messages[1]["tool_calls"][0]["function"]["name"]] == ["q", "f"]
    assert list(branch.token_ids) == [1, 2, 5, 6]


def test_a_sealed_trace_takes_nothing_and_still_tells() -> None:
    trace = Trace()
    turn = trace.prepare_turn(START)
    first_turn(trace)
    trace.seal()
    for act in (lambda: trace.prepare_turn(START), lambda: trace.commit(turn, answer([1], assistant("x"), PROMPT))):
        with pytest.raises(TraceError, match="sealed"):
            act()
    assert len(trace.branches()) == 1


def test_misuse_is_refused() -> None:
    trace, other = Trace(), Trace()
    with pytest.raises(MessageError):
        trace.prepare_turn([])
    with pytest.raises(TraceError, match="another trace"):
        trace.commit(other.prepare_turn(START), answer([1], assistant("x"), PROMPT))
    first_turn(trace)
    for node_id in (0, 17, -1):
        with pytest.raises(TraceError, match="no sampled node"):
            trace.abandon(node_id)
    with pytest.raises(TurnRefusedError, match="role"):
        trace.commit(trace.prepare_turn(START), answer([1], user("x"), PROMPT))
    assert trace.refused == {"bad_message": 1}


@pytest.mark.parametrize("has_labels", [True, False])
def test_message_ends_cover_the_prompt_in_order(has_labels: bool) -> None:
    indices = [0, 0, -1, 1, -1, 3, 3, -1, -1] if has_labels else None
    assert message_ends(indices, 0, 0, 4, 9) == ([2, 4, 4, 7] if has_labels else [9, 9, 9, 9])
    assert message_ends(indices, 3, 1, 4, 9) == ([4, 4, 7] if has_labels else [9, 9, 9])
    assert message_ends(indices, 6, 4, 4, 9) == []


def test_a_hundred_turns_of_32k_tokens_stay_below_two_mebibytes() -> None:
    trace = Trace()
    messages: list[dict[str, Any]] = [system("s" * 400), user("q" * 400)]
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 2000}}]
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    prompt: list[int] = list(range(200))
    for number in range(100):
        turn = trace.prepare_turn(messages, tools)
        ids = list(range(1000, 1160))
        reply = assistant("a" * 300 + str(number), tool_calls=[call("f", f'{{"x": {number}}}', f"c{number}")])
        trace.commit(turn, answer(ids, reply, prompt, sampling_params={"temperature": 1.0}))
        messages = [*messages, reply, tool("r" * 600 + str(number), f"c{number}")]
        prompt = [*prompt, *ids, *range(2000, 2160)]
        del turn, ids, reply
    del messages, prompt
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(trace.branches()[0].token_ids) > 31_000
    assert used < 1 << 20, used
    assert used < trace.nbytes < 1 << 21
