"""Sessions as agents make them, each with the verdict the design gives it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from router_tito.errors import TurnRefusedError
from tito_kit import Agent, Trained, answer, assistant, call, runs, system, tool, user

START = [system("You are terse."), user("List the files.")]
CALL_TEXT = '{"path": "/tmp", "all": true}'
CALLING = assistant(None, tool_calls=[call("ls", CALL_TEXT)])
RESULT = tool("a.txt\nb.txt")
FILES = assistant("two files")
NOW = user("And now?")
O1 = [
    "<thi",
    "nk>look</think>",
    '<tool_call>{"name": "l',
    's", "arguments": {"path": "/tmp", "all": true}}</tool_call>',
]
O2 = ["two f", "iles"]
O3 = ["sa", "me"]


class Scripted(Agent):
    """An agent whose answers are given as the pieces the model sampled, each tokenised alone."""

    def say(
        self, messages: list[dict[str, Any]], pieces: list[str], message: dict[str, Any], **fields: Any
    ) -> list[int]:
        ids = [token for piece in self.tokenizer.encode_batch(pieces) for token in piece]
        self.ask(messages, ids, message, **fields)
        return ids

    def sampled(self) -> list[list[list[int]]]:
        """Completion ids of every transition of every branch."""
        return [[list(view.completion_ids) for view in branch.transitions] for branch in self.trace.branches()]


def agent(**settings: Any) -> Scripted:
    return Scripted(Trained(), **settings)


def linear(made: Scripted, call_message: dict[str, Any] = CALLING) -> list[list[int]]:
    first = made.say(START, O1, CALLING)
    second = made.say([*START, call_message, RESULT], O2, FILES)
    third = made.say([*START, call_message, RESULT, FILES, NOW], O3, assistant("same"))
    return [first, second, third]


def is_extension(made: Scripted) -> bool:
    transitions = made.trace.branches()[0].transitions
    return all(later.is_exact_extension_of(earlier) for earlier, later in pairwise(transitions))


def test_strictly_appended_turns_are_one_sequence() -> None:
    made = agent()
    assert made.sampled() == [] and [linear(made)] == made.sampled()
    assert is_extension(made)


def test_respaced_arguments_are_the_same_message() -> None:
    made = agent()
    sent = assistant(None, tool_calls=[call("ls", '{"all":true,"path":"/tmp"}')])
    assert [linear(made, sent)] == made.sampled()
    strict = agent(matchers=["strict"])
    linear(strict, sent)
    assert len(strict.rows()) == 2


def test_a_turn_sent_again_later_leaves_one_sequence_to_train_on() -> None:
    made = agent()
    first = made.say(START, O1, CALLING)
    second = made.say([*START, CALLING, RESULT], O2, FILES)
    made.say([*START, CALLING, RESULT], O2, FILES)
    third = made.say([*START, CALLING, RESULT, FILES, NOW], O3, assistant("same"))
    assert made.sampled() == [[first, second, third]]


def test_a_turn_sent_again_and_answered_otherwise_leaves_one_once_the_other_is_dropped() -> None:
    made = agent()
    first = made.say(START, O1, CALLING)
    made.say([*START, CALLING, RESULT], ["2 files"], FILES)
    second = made.say([*START, CALLING, RESULT], O2, FILES)
    third = made.say([*START, CALLING, RESULT, FILES, NOW], O3, assistant("same"))
    (branch,) = made.trace.branches(drop_abandoned=True)
    assert [list(view.completion_ids) for view in branch.transitions] == [first, second, third]


def test_the_same_body_twice_at_once_keeps_one() -> None:
    made = agent()
    turns = [made.trace.prepare_turn(START), made.trace.prepare_turn(START)]
    assert turns[0].request == turns[1].request
    for turn, piece in zip(turns, ("one", "other"), strict=True):
        prompt = made.renderer.render_turn(turn)
        made.prompts.append(prompt)
        made.trace.commit(turn, answer(Trained().encode(piece), assistant(piece), prompt))
    assert len(made.trace.branches()) == 2
    assert len(made.trace.branches(drop_abandoned=True)) == 1


def test_a_rewritten_history_is_a_second_sequence_and_the_first_is_untouched() -> None:
    made = agent()
    first = made.say(START, O1, CALLING)
    second = made.say([*START, CALLING, RESULT], O2, FILES)
    before = made.rows()
    third = made.say([START[0], user("Summary so far: two files. And now?")], O3, assistant("same"))
    assert made.sampled() == [[first, second], [third]]
    assert made.rows()[:1] == before


@pytest.mark.parametrize(("matcher", "sequences"), [("loose_tool_call", 2), ("reasoning_optional", 1)])
def test_stripped_reasoning_is_a_visible_split_or_the_sampled_ids(matcher: str, sequences: int) -> None:
    made = agent(matchers=[matcher])
    made.say(START, O1, {**CALLING, "reasoning_content": "look"})
    made.say([*START, CALLING, RESULT], O2, FILES)
    assert len(made.rows()) == sequences
    for branch, sent in zip(made.trace.branches(), made.prompts[-sequences:], strict=True):
        assert branch.transitions[-1].prompt_ids == sent.ids
    if sequences == 1:
        assert is_extension(made)


@pytest.mark.parametrize(
    ("reply", "sent"),
    [
        (assistant("two files", tool_calls=[]), {"role": "assistant", "content": "two files"}),
        (
            {"role": "assistant", "content": None, "tool_calls": [call("f", "{}")]},
            assistant("", tool_calls=[call("f", "{}")]),
        ),
        (assistant("two files"), assistant([{"type": "text", "text": "two files"}])),  # type: ignore[arg-type]  # as sent
    ],
)
def test_null_empty_absent_and_parts_are_one_message(reply: dict[str, Any], sent: dict[str, Any]) -> None:
    made = agent()
    first = made.say(START, O2, reply)
    listed = {"role": "user", "content": [{"type": "text", "text": "List the files."}]}
    second = made.say([START[0], listed, sent, NOW], O3, assistant("same"))
    assert made.sampled() == [[first, second]]


def test_an_assistant_message_the_client_wrote_is_context() -> None:
    made = agent()
    few_shot = [START[0], user("1+1"), assistant("2"), START[1]]
    first = made.say(few_shot, O2, FILES)
    second = made.say([*few_shot, FILES, NOW], O3, assistant("same"))
    assert made.sampled() == [[first, second]]
    _, mask = made.rows()[0]
    assert sum(mask) == len(first) + len(second)
    assert runs(mask).startswith(f"c{len(made.prompts[0].ids)} T")


def test_two_tool_results_and_a_question_are_appended_at_once() -> None:
    made = agent()
    first = made.say(START, O1, CALLING)
    second = made.say([*START, CALLING, RESULT, tool("{}", "c2"), NOW], O2, FILES)
    assert (made.sampled(), made.prompts[-1].how) == ([[first, second]], "bridge")


def test_a_stop_token_between_turns_is_there_once() -> None:
    made = agent()
    made.say(START, ["two files", "<|im_end|>"], FILES)
    made.say([*START, FILES, NOW], ["same", "<|im_end|>"], assistant("same"))
    ids, mask = made.rows()[0]
    text = made.tokenizer.decode(ids)
    assert text.endswith(
        "two files<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\nsame<|im_end|>"
    )
    closes = [bit for token, bit in zip(ids, mask, strict=True) if made.tokenizer.decode([token]) == "<|im_end|>"]
    assert closes == [0, 0, 1, 0, 1]


def test_an_answer_cut_in_a_tool_call_is_kept_and_gone_on_from() -> None:
    made = agent()
    cut = ['<tool_call>{"na', 'me": "l']
    message = assistant("".join(cut))
    first = made.say(START, cut, message, finish_reason="length")
    second = made.say([*START, message, NOW], O3, assistant("same"))
    assert (made.sampled(), made.prompts[-1].how) == ([[first, second]], "bridge")


def test_an_answer_cut_in_thinking_is_kept_and_what_follows_is_rendered_whole() -> None:
    made = agent()
    message = assistant("", reasoning_content="so I")
    first = made.say(START, ["<think>", "\nso I"], message, finish_reason="length")
    second = made.say([*START, message, NOW], O3, assistant("same"))
    assert made.prompts[-1].no_bridge == "cut_in_thinking"
    assert made.sampled() == [[first], [second]]


def test_another_end_token_is_kept_and_the_close_is_context() -> None:
    made = agent()
    first = made.say(START, ["two files", "<|endoftext|>"], FILES)
    second = made.say([*START, FILES, NOW], O3, assistant("same"))
    assert made.sampled() == [[first, second]]
    assert "two files<|endoftext|><|im_end|>\n<|im_start|>user" in made.tokenizer.decode(made.rows()[0][0])


@pytest.mark.parametrize("pieces", [[], ["two f", "il"]])
def test_an_aborted_answer_is_not_trained_on(pieces: list[str]) -> None:
    made = agent()
    with pytest.raises(TurnRefusedError, match="abort"):
        made.say(START, pieces, assistant(""), finish_reason="abort")
    second = made.say(START, O2, FILES)
    assert (made.sampled(), dict(made.trace.refused)) == ([[second]], {"aborted": 1})


def test_answers_without_logprobs_are_refused_and_not_masked_away() -> None:
    made = agent()
    with pytest.raises(TurnRefusedError, match="no logprobs"):
        made.say(START, O2, FILES, logprobs=None)
    assert made.rows() == []


def test_reasoning_that_a_client_sends_reaches_the_prompt() -> None:
    made = agent()
    sent = {**assistant("x"), "reasoning_content": "because", "extra": {"kept": 1}}
    made.say([*START, sent, RESULT], O3, assistant("same"))
    assert "because" in made.tokenizer.decode(made.prompts[0].ids)
    assert made.trace.branches()[0].messages[2] == sent
