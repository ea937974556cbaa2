"""Random edit scripts over rendered sessions: whatever agents do to their histories, each sampled token is trained
once, behind exactly the ids that it was sampled on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from router_tito.trace import Trace
from router_tito.turn import PendingTurn
from test_properties import check_match
from tito_kit import LLAMA_LIKE, QWEN3_LIKE, Agent, Trained, answer, assistant, call, system, tool, user

EDITS = ["extend", "extend", "compact", "sub_agent", "retry", "reorder", "drop_reasoning", "overlap"]
CLOSES = {QWEN3_LIKE: "<|im_end|>", LLAMA_LIKE: "<|eot|>"}
Messages = list[dict[str, Any]]


@dataclass
class Script:
    """Agents of one session that take turns, and beside the trace a plain list of what was asked and sampled."""

    agent: Agent
    close: str
    draw: Any
    histories: list[Messages] = field(default_factory=lambda: [[system("s"), user("q")]])
    """The next request of each agent."""
    calls: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)

    def run(self, edit: str) -> None:
        at = self.draw(st.integers(0, len(self.histories) - 1))
        history = self.histories[at]
        if edit == "overlap":
            self.overlap()
            return
        if edit == "compact":
            history = [history[0], user("so far: " + self.text()), *history[-1:]][: self.draw(st.integers(2, 3))]
        elif edit == "sub_agent":
            history = self.draw(st.sampled_from([[system("sub"), user(self.text())], [history[0], user(self.text())]]))
            self.histories.append(history)
            at = len(self.histories) - 1
        elif edit == "reorder":
            history = [_reordered(message) for message in history]
        elif edit == "drop_reasoning":
            history = [{k: v for k, v in message.items() if k != "reasoning_content"} for message in history]
        asked = history if history[-1]["role"] != "assistant" else [*history, user(self.text())]
        said = self.commit(*self.prepare(asked))
        if edit == "retry":  # the former answer was not gone on from
            said = self.commit(*self.prepare(asked))
        calls = said.get("tool_calls") or []
        results = [tool(self.text(), asked["id"]) for asked in calls]
        self.histories[at] = [*asked, said, *(results or [user(self.text())])]

    def overlap(self) -> None:
        """Two agents ask before either is answered; the later one is answered first."""
        at, other = (self.draw(st.integers(0, len(self.histories) - 1)) for _ in range(2))
        first, second = self.prepare(self.histories[at]), self.prepare(self.histories[other])
        self.histories[other] = [*self.histories[other], self.commit(*second), user(self.text())]
        if at != other:
            self.histories[at] = [*self.histories[at], self.commit(*first), user(self.text())]
        else:
            self.commit(*first)

    def prepare(self, messages: Messages) -> tuple[PendingTurn, Any]:
        turn = self.agent.trace.prepare_turn(messages)
        check_match(self.agent.trace, messages, turn)
        prompt = self.agent.renderer.render_turn(turn)
        return turn, prompt

    def commit(self, turn: PendingTurn, prompt: Any) -> dict[str, Any]:
        said = self.draw(st.sampled_from(["ok", "the city", "x y"]))
        fields: dict[str, Any] = {}
        if self.draw(st.booleans()):
            fields["reasoning_content"] = "hm"
        if self.draw(st.booleans()):
            fields["tool_calls"] = [call("f", '{"a": 1, "b": "é"}', f"c{len(self.calls)}")]
        message = assistant(said, **fields)
        # A model writes in its own way: no template would write this.
        text = f"{'<think>hm</think>' if 'reasoning_content' in fields else ''}{said} {len(self.calls)}"
        is_cut = self.draw(st.booleans())
        sampled = self.agent.tokenizer.encode(text if is_cut else text + self.close)
        result = self.agent.trace.commit(turn, answer(sampled, message, prompt))
        assert not result.is_repeat
        self.calls[result.node_id] = (list(prompt.ids), sampled)
        return message

    def text(self) -> str:
        return self.draw(st.sampled_from(["fine", "x\n", "é東", "<|im_end|>", "the weather "]))


def _reordered(message: dict[str, Any]) -> dict[str, Any]:
    """The same message as another serialiser writes it."""
    turned = dict(reversed(list(message.items())))
    if calls := turned.get("tool_calls"):
        written = '{ "b":"\\u00e9", "a": 1.0}'
        turned["tool_calls"] = [
            dict(reversed([*asked.items(), ("function", {"arguments": written, "name": "f"})])) for asked in calls
        ]
    return turned


def check(trace: Trace, calls: dict[int, tuple[list[int], list[int]]], *, drop_abandoned: bool) -> set[int]:
    """Every trained token behind its true prefix, none trained twice; gives the answers that are trained."""
    seen: set[int] = set()
    trained = 0
    for branch in trace.branches(drop_abandoned=drop_abandoned):
        ids, mask = list(branch.token_ids), list(branch.loss_mask)
        expected = [0] * len(ids)
        for node_id in branch.node_ids:
            if node_id not in calls:
                continue
            prompt, sampled = calls[node_id]
            end = len(prompt) + len(sampled)
            assert ids[:end] == prompt + sampled
            if node_id in branch.trained:
                assert node_id not in seen
                seen.add(node_id)
                expected[len(prompt) : end] = [1] * len(sampled)
        assert mask == expected
        trained += sum(mask)
    assert trained == sum(len(calls[node_id][1]) for node_id in seen)
    return seen


@settings(max_examples=120, deadline=None)
@given(st.data(), st.sampled_from(list(CLOSES)), st.lists(st.sampled_from(EDITS), min_size=1, max_size=12))
def test_each_sampled_token_is_trained_once_behind_what_it_was_sampled_on(
    data: Any, template: str, edits: list[str]
) -> None:
    agent = Agent(Trained(template), matchers=["loose_tool_call", "reasoning_optional"])
    script = Script(agent, CLOSES[template], data.draw)
    for edit in edits:
        script.run(edit)
    assert check(agent.trace, script.calls, drop_abandoned=False) == set(script.calls)
    kept = check(agent.trace, script.calls, drop_abandoned=True)
    extended = {node.node_id for node in agent.trace.nodes if node.is_sampled and node.children}
    assert extended <= kept
    last = [node_ids[-1] for node_ids in agent.trace.graph.answers.values()]
    assert {node_id for node_id in last if not _has_extended_twin(agent.trace, node_id)} <= kept


def _has_extended_twin(trace: Trace, node_id: int) -> bool:
    facts = trace.nodes[node_id].turn
    assert facts is not None
    return any(trace.nodes[twin].children for twin in trace.graph.answers[facts.request])


def test_an_untouched_history_is_one_sequence_whatever_the_order_of_its_keys() -> None:
    agent = Agent(Trained(), matchers=["loose_tool_call", "reasoning_optional"])
    messages: Messages = [system("s"), user("q")]
    for number in range(4):
        said = assistant("ok", reasoning_content="hm", tool_calls=[call("f", '{"a": 1, "b": "é"}', f"c{number}")])
        agent.ask(messages, f"<think>hm</think>ok {number}<|im_end|>", said)
        messages = [_reordered(message) for message in [*messages, said, tool("r", f"c{number}")]]
        messages = [{k: v for k, v in message.items() if k != "reasoning_content"} for message in messages]
    assert len(agent.trace.branches()) == 1
