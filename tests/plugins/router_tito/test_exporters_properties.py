"""Random sessions, exported: every sampled token that is kept is trained once, behind its true prefix."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from router_tito.experts import RoutedRows
from router_tito.exporters import ExportOptions, SampleRow, TraceOutcome, build_training_arrays, export, find_composer
from router_tito.node import ModelTurnResult
from router_tito.trace import Trace
from tito_kit import assistant, system, tool, user

ENVIRONMENT = st.sampled_from([user("u1"), user("u2"), tool("r1"), tool("r2"), system("s")])
MOVES = st.sampled_from(["go_on", "go_on", "go_on", "retry", "compact", "sub_agent", "back", "rewrite"])
TOOLS = st.sampled_from([None, [{"type": "function", "function": {"name": "f"}}]])
FORMATS = ("neutral", "psrl", "skyrl", "slime", "verl")
PICKERS = st.sampled_from(["all_leaves", "drop_abandoned", "longest"])


class Run:
    """A random agent. Every sampled token has an id of its own, so that it is known wherever it turns up."""

    def __init__(self) -> None:
        self.trace = Trace(expects_routed_experts=True)
        self.sampled: dict[int, tuple[list[int], float, str]] = {}
        """Sampled token -> the ids before it, its logprob, its weight version."""
        self.answers: dict[int, list[int]] = {}
        """Answer's node -> its tokens."""
        self.next_id = 1000

    def play(self, draw: Any, turns: int) -> None:
        messages = [user("q")]
        stack: list[list[dict[str, Any]]] = []
        for number in range(turns):
            messages = [*messages, self._ask(draw, messages, draw(TOOLS), str(number))]
            move = draw(MOVES)
            if move == "retry":
                messages = messages[:-1]
            elif move == "compact":
                messages = [user(f"summary {number}")]
            elif move == "sub_agent":
                stack.append(messages)
                messages = [system("sub"), draw(ENVIRONMENT)]
            elif move == "back" and stack:
                messages = [*stack.pop(), draw(ENVIRONMENT)]
            elif move == "rewrite":
                place = draw(st.integers(0, len(messages) - 1))
                messages = [*messages[:place], draw(ENVIRONMENT), *messages[place + 1 :]]
            else:
                messages = [*messages, draw(ENVIRONMENT)]

    def _ask(self, draw: Any, messages: list[dict[str, Any]], tools: Any, version: str) -> dict[str, Any]:
        turn = self.trace.prepare_turn(messages, tools)
        anchor = turn.bridge_anchor()
        known = list(anchor[0] + anchor[1]) if anchor is not None else []
        prompt = known + draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
        count = draw(st.integers(1, 3))
        completion = list(range(self.next_id, self.next_id + count))
        self.next_id += count
        logprobs = [-1 / token for token in completion]
        for place, token in enumerate(completion):
            self.sampled[token] = (prompt + completion[:place], logprobs[place], version)
        said = assistant(draw(st.sampled_from(["a", "b"])))
        rows = np.array([[[token % 251]] for token in (prompt + completion)[:-1]], np.uint8)
        result = ModelTurnResult(
            prompt,
            completion,
            logprobs,
            said,
            "stop",
            routed_experts=RoutedRows(rows),
            weight_version=version,
            reused_prefix_length=len(known),
        )
        self.answers[self.trace.commit(turn, result).node_id] = completion
        return said

    def check(self, row: SampleRow) -> list[int]:
        """All that is said of a row's tokens; gives the trained ones."""
        tokens, mask, logprobs = list(row.tokens), list(row.loss_mask), list(row.logprobs)
        assert len(tokens) == len(mask) == len(logprobs)
        assert row.routed_experts is not None
        assert row.routed_experts[:, 0, 0].tolist() == [token % 251 for token in tokens[:-1]]
        versions = {place: span.version for span in row.weight_versions for place in range(span.start, span.end)}
        own = {place for turn in row.turns for place in range(turn.start, turn.end)}
        assert set(versions) == own == {place for place, token in enumerate(tokens) if token >= 1000}
        for place, token in enumerate(tokens):
            if mask[place]:
                assert (tokens[:place], logprobs[place], versions[place]) == self.sampled[token]
            else:
                assert logprobs[place] == 0.0
        for turn in row.turns:
            assert tokens[turn.start : turn.end] == self.answers[turn.node_id]
            assert mask[turn.start : turn.end] == [int(turn.is_trained)] * (turn.end - turn.start)
        return [token for token, bit in zip(tokens, mask, strict=True) if bit]


@settings(max_examples=150)
@given(st.data(), st.integers(1, 10), PICKERS, st.booleans())
def test_each_sampled_token_that_is_kept_is_trained_once_behind_its_true_prefix(
    data: Any, turns: int, picker: str, keep_auxiliary: bool
) -> None:
    run = Run()
    run.play(data.draw, turns)
    made = export(TraceOutcome(run.trace, "t"), ExportOptions(picker=picker, keep_auxiliary=keep_auxiliary))
    trained = [token for row in made.rows for token in run.check(row)]
    assert len(trained) == len(set(trained))
    in_rows = {token for row in made.rows for token in row.tokens if token >= 1000}
    assert set(trained) == in_rows
    assert all(sum(row.loss_mask) for row in made.rows)
    assert made.reasons == ([] if made.rows else ["every branch was left out"])
    leaves = {branch.branch_id for branch in run.trace.branches()}
    picked = {row.branch_id for row in made.rows}
    assert {left.branch_id for left in made.left_out} == leaves - picked
    if picker == "all_leaves" and keep_auxiliary:
        assert set(trained) == set(run.sampled)
    if picker == "longest":
        assert len(made.rows) <= 1


@settings(max_examples=60)
@given(st.data(), st.integers(1, 8))
def test_every_format_holds_the_same_tokens(data: Any, turns: int) -> None:
    run = Run()
    run.play(data.draw, turns)
    outcome = TraceOutcome(run.trace, "t", 1.0)
    options = ExportOptions(picker="all_leaves", keep_auxiliary=True, strict=True)
    composed = {name: find_composer(name)(options).compose([outcome]) for name in FORMATS}
    neutral = [(row["tokens"], row["loss_mask"], row["logprobs"]) for row in composed["neutral"]]

    def whole(prompt: list[int], response: list[int], mask: list[int], logprobs: list[float]) -> Any:
        return prompt + response, [0] * len(prompt) + mask, [0.0] * len(prompt) + logprobs

    skyrl = composed["skyrl"]
    names = ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs")
    assert [whole(*values) for values in zip(*(skyrl[name] for name in names), strict=True)] == neutral
    for name, keys in {
        "psrl": ("prompt_ids", "response_ids", "response_mask", "logprobs"),
        "verl": ("prompt_ids", "response_ids", "response_mask", "response_logprobs"),
    }.items():
        assert [
            whole(*(row[key] for key in keys)) for row in find_composer(name)(options).compose([outcome])
        ] == neutral
    for sample, (tokens, mask, logprobs) in zip(
        find_composer("slime")(options).compose([outcome]), neutral, strict=True
    ):
        prompt = len(tokens) - sample["response_length"]
        assert (sample["tokens"], [0] * prompt + sample["loss_mask"]) == (tokens, mask)
        assert [0.0] * prompt + sample["rollout_log_probs"] == logprobs
    for branch in run.trace.branches():
        arrays = build_training_arrays(find_by(neutral, list(branch.token_ids), outcome, options))
        assert arrays.routed_experts is not None
        assert len(arrays.routed_experts) == len(arrays.prompt_ids) + len(arrays.response_ids) - 1


def find_by(neutral: list[Any], tokens: list[int], outcome: TraceOutcome, options: ExportOptions) -> SampleRow:
    assert tokens in [row[0] for row in neutral]
    return next(row for row in export(outcome, options).rows if list(row.tokens) == tokens)


def test_a_trace_is_exported_while_it_grows() -> None:
    """Export runs in a thread; whatever it sees is a beginning of what is there."""
    trace = Trace(expects_routed_experts=True)
    failures: list[BaseException] = []
    seen: list[int] = []
    done = threading.Event()

    def export_all() -> None:
        try:
            while not done.is_set():
                rows = export(TraceOutcome(trace, "t"), ExportOptions(picker="all_leaves")).rows
                for row in rows:
                    assert len(row.tokens) == len(row.loss_mask) == len(row.logprobs)
                seen.append(sum(sum(row.loss_mask) for row in rows))
        except BaseException as error:  # noqa: BLE001  # told to the test, whatever it is
            failures.append(error)

    reader = threading.Thread(target=export_all)
    reader.start()
    for number in range(150):
        messages, prompt = [user(f"q{number % 40}")], [number % 40, 1]
        for step in range(3):
            turn = trace.prepare_turn(messages)
            said = assistant(f"a{number}.{step}")
            experts = RoutedRows(np.ones((len(prompt) + 1, 2, 2), np.uint8))
            result = ModelTurnResult(prompt, [number, step], [-0.5, -0.25], said, "stop", routed_experts=experts)
            trace.commit(turn, result)
            messages, prompt = [*messages, said, user("more")], [*prompt, number, step, 7]
    done.set()
    reader.join(30)
    assert not reader.is_alive()
    assert failures == []
    assert seen == sorted(seen)
    assert sum(sum(row.loss_mask) for row in export(TraceOutcome(trace, "t"), ExportOptions("all_leaves")).rows) == 900
