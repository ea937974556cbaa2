"""Random sessions: what was sent and sampled must come back to the token, whatever the agent does to its history."""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from router_tito.lines import Lines
from router_tito.matcher import Matcher
from router_tito.node import ModelTurnResult
from router_tito.render import Renderer
from router_tito.trace import Trace
from router_tito.turn import PendingTurn
from tito_kit import GLM_LIKE, LLAMA_LIKE, QWEN3_LIKE, Agent, Trained, answer, assistant, row, system, tool, user

TOKENS = st.lists(st.integers(0, 5), min_size=1, max_size=4)
ENVIRONMENT = st.sampled_from([user("u1"), user("u2"), tool("r1"), tool("r2"), system("s")])
MOVES = st.sampled_from(["go_on", "go_on", "go_on", "retry", "drop_last", "restart", "rewrite", "strip"])


@dataclass
class Session:
    """A trace beside a plain record of every call that went into it."""

    trace: Trace = field(default_factory=lambda: Trace(matcher=Matcher(["loose_tool_call", "reasoning_optional"])))
    messages: list[dict[str, Any]] = field(default_factory=lambda: [user("q")])
    calls: dict[int, tuple[list[int], list[int], list[float]]] = field(default_factory=dict)

    def ask(self, draw: Any, number: int) -> None:
        turn = self.trace.prepare_turn(self.messages)
        check_match(self.trace, self.messages, turn)
        anchor = turn.bridge_anchor()
        if anchor is not None and draw(st.booleans()):
            known = list(anchor[0] + anchor[1])
        else:
            known = draw(st.just([]) | TOKENS)
        prompt = known + draw(TOKENS)
        completion = draw(TOKENS)
        content = draw(st.sampled_from(["a", "b"]))
        logprobs = [-(number + 1) - index / 8 for index in range(len(completion))]
        result = ModelTurnResult(
            prompt_ids=prompt,
            completion_ids=completion,
            logprobs=logprobs,
            message=assistant(content, reasoning_content="t"),
            finish_reason="stop",
            prompt_message_indices=self._labels(draw, len(prompt)),
            reused_prefix_length=len(known) if anchor and known == list(anchor[0] + anchor[1]) else 0,
            weight_version=str(number),
        )
        committed = self.trace.commit(turn, result)
        assert committed.node_id not in self.calls
        self.calls[committed.node_id] = (prompt, completion, logprobs)
        if draw(st.booleans()):
            self.trace.mark_delivered(committed.node_id)
        self.messages = [*self.messages, assistant(content, reasoning_content="t")]

    def _labels(self, draw: Any, length: int) -> list[int] | None:
        if draw(st.booleans()):
            return None
        labels = st.lists(st.integers(0, len(self.messages) - 1), min_size=length, max_size=length)
        is_scaffold = draw(st.lists(st.booleans(), min_size=length, max_size=length))
        return [-1 if bare else label for bare, label in zip(is_scaffold, sorted(draw(labels)), strict=True)]

    def move(self, draw: Any) -> None:
        move = draw(MOVES)
        if move == "retry":
            self.messages = self.messages[:-1]
        elif move == "drop_last" and len(self.messages) > 2:
            self.messages = [*self.messages[:-2], draw(ENVIRONMENT)]
        elif move == "restart":
            self.messages = [draw(ENVIRONMENT)]
        elif move == "rewrite":
            place = draw(st.integers(0, len(self.messages) - 1))
            self.messages = [*self.messages[:place], draw(ENVIRONMENT), *self.messages[place + 1 :]]
        elif move == "strip":
            stripped = [{k: v for k, v in message.items() if k != "reasoning_content"} for message in self.messages]
            self.messages = [*stripped, draw(ENVIRONMENT)]
        else:
            self.messages = [*self.messages, draw(ENVIRONMENT)]


def check_match(trace: Trace, messages: list[dict[str, Any]], turn: PendingTurn) -> None:
    """A line only saves work: what is found by it is what walking the whole graph finds."""
    graph, lines = trace.graph, trace.graph.lines
    ids = [list(graph.token_ids(node_id)) for node_id in turn.path]
    graph.lines = Lines()
    walked = graph.match(messages, turn.context, trace.matcher.key)
    assert (walked.keys, walked.path, walked.request) == (turn.keys, turn.path, turn.request)
    assert ids == [list(graph.token_ids(node_id)) for node_id in turn.path]
    assert list(turn.path) == (graph.path(turn.path[-1]) if turn.path else [])
    graph.lines = lines


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 10))
def test_every_call_comes_back_and_every_sampled_token_is_trained_once(data: Any, turns: int) -> None:
    session = Session()
    for number in range(turns):
        session.ask(data.draw, number)
        session.move(data.draw)
    trace = session.trace
    _check_calls(trace, session.calls)
    trained = sorted(node_id for branch in trace.branches() for node_id in branch.trained)
    assert trained == sorted(session.calls)
    kept = [node_id for branch in trace.branches(drop_abandoned=True) for node_id in branch.trained]
    assert len(kept) == len(set(kept))
    loaded = Trace.from_dict(json.loads(json.dumps(trace.to_dict())), matcher=trace.matcher)
    assert loaded.to_dict() == trace.to_dict()
    for drop_abandoned in (False, True):
        before, after = (t.branches(drop_abandoned=drop_abandoned) for t in (trace, loaded))
        assert list(map(row, before)) == list(map(row, after))
        assert [list(branch.logprobs) for branch in before] == [list(branch.logprobs) for branch in after]


def _check_calls(trace: Trace, calls: dict[int, tuple[list[int], list[int], list[float]]]) -> None:
    seen = set()
    for branch in trace.branches():
        ids, mask = row(branch)
        assert len(ids) == len(mask) == len(branch.logprobs)
        assert trace.nodes[branch.branch_id].is_sampled
        for transition in branch.transitions:
            prompt, completion, logprobs = calls[transition.node_ids[-1]]
            assert (list(transition.prompt_ids), list(transition.completion_ids)) == (prompt, completion)
            assert list(transition.logprobs) == logprobs
            span = slice(len(prompt), len(prompt) + len(completion))
            assert ids[span] == completion
            is_trained = transition.node_ids[-1] in branch.trained
            assert mask[span] == [int(is_trained)] * len(completion)
            assert list(branch.logprobs)[span] == (logprobs if is_trained else [0.0] * len(completion))
            seen.add(transition.node_ids[-1])
        assert sum(mask) == sum(len(calls[node_id][1]) for node_id in branch.trained)
    assert seen == set(calls)


WORDS = st.sampled_from(
    ["the city", "weather  is", "fine\n", "x", '{"a": 1}', "é東🙂", "<|im_end|>", "a<think>b", " y"]
)
TEXTS = st.lists(WORDS, min_size=1, max_size=3).map(" ".join)
TAILS = st.sampled_from(
    [["user"], ["tool"], ["tool", "tool"], ["tool", "user"], ["tool", "tool", "tool", "user"], ["system"]]
)
WRITTEN = {QWEN3_LIKE: "{}<|im_end|>", LLAMA_LIKE: "{}<|eot|>", GLM_LIKE: "\n{}"}
"""How a model of that template writes an answer."""


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from([QWEN3_LIKE, LLAMA_LIKE, GLM_LIKE]))
def test_a_bridge_is_the_whole_rendering_if_the_model_writes_as_the_template_does(data: Any, template: str) -> None:
    """Which is what a bridge must be: the same text, but for what the model wrote in its own way."""
    tokenizer = Trained(template)
    agent = Agent(tokenizer)
    messages: list[dict[str, Any]] = [system("s"), user(data.draw(TEXTS))]
    for _ in range(data.draw(st.integers(1, 4))):
        content = data.draw(st.sampled_from(["ok", "the city", "x y"]))
        agent.ask(messages, WRITTEN[template].format(content), assistant(content))
        messages = [*messages, assistant(content)]
        messages += [{"role": role, "content": data.draw(TEXTS)} for role in data.draw(TAILS)]
    turn = agent.trace.prepare_turn(messages)
    prompt = agent.renderer.render_turn(turn)
    assert prompt.how == "bridge"
    assert list(prompt.ids) == list(agent.renderer.render(messages).ids)
    assert len(prompt.message_indices) == len(prompt.ids) - prompt.labelled_from
    assert len(agent.trace.branches()) == 1


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_whatever_was_sampled_is_the_beginning_of_the_next_prompt(data: Any) -> None:
    tokenizer = Trained()
    [opened] = tokenizer.encode("<think>")  # an answer cut inside its thinking is rendered anew
    sampled_ids = st.integers(20, 500).filter(lambda token_id: token_id != opened)
    renderer = Renderer(tokenizer)
    trace = Trace()
    messages = [user("q")]
    expected: array[int] = array("i")
    for number in range(3):
        turn = trace.prepare_turn(messages)
        prompt = renderer.render_turn(turn)
        assert prompt.ids[: len(expected)] == expected
        sampled = data.draw(st.lists(sampled_ids, min_size=1, max_size=6))
        trace.commit(turn, answer(sampled, assistant(f"a{number}"), prompt))
        expected = prompt.ids + array("i", sampled)
        messages = [*messages, assistant(f"a{number}"), user(data.draw(TEXTS))]
    assert len(trace.branches()) == 1
