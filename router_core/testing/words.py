"""What a scripted worker says in one generation, token by token."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from router_core.testing.tokens import TURN_END, decode, encode

DEFAULT_TEXT = "Words of a scripted worker."


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call; chat answers show it parsed, the ids and ``/generate`` spell it out."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arguments_json(self) -> str:
        return orjson.dumps(dict(self.arguments)).decode()

    @property
    def spelled(self) -> str:
        return f'\n<tool_call>\n{{"name": "{self.name}", "arguments": {self.arguments_json}}}\n</tool_call>'


@dataclass(slots=True)
class Words:
    """The tokens of one answer. ``ids`` and ``logprobs`` are equally long; logprobs in nats.

    The model's whole text is ``<think>reasoning</think>``, ``content`` and the spelled tool calls, where there are any.
    """

    content: str
    ids: list[int]
    logprobs: list[float]
    finish: str = "stop"
    """``stop`` (the end token came), ``length`` or ``abort``."""
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    hold_after: int | None = None
    is_scripted: bool = True
    """Scripted words are said exactly; the default ones obey ``max_tokens``."""
    on_release: Callable[[], None] = lambda: None
    pieces: list[str] = field(default_factory=list)
    """The text of each id; together the whole text, however ids and text were scripted."""

    @classmethod
    def script(
        cls,
        text: str = DEFAULT_TEXT,
        *,
        ids: list[int] | None = None,
        finish: str = "stop",
        logprobs: list[float] | None = None,
        reasoning: str | None = None,
        tool_calls: list[ToolCall] | None = None,
        hold_after: int | None = None,
    ) -> "Words":
        """Fills in what is not given: ids from the text, the text from ids, logprobs from both."""
        if ids is not None and not text and not reasoning and not tool_calls:
            text = decode(ids)
        words = cls(text, [], [], finish, reasoning, tool_calls or [], hold_after)
        end = [TURN_END] if finish == "stop" else []
        words.ids = encode(words.whole_text) + end if ids is None else list(ids)
        words.logprobs = (
            [default_logprob(at, token_id) for at, token_id in enumerate(words.ids)]
            if logprobs is None
            else list(logprobs)
        )
        if len(words.logprobs) != len(words.ids):
            raise ValueError(f"{len(words.logprobs)} logprobs for {len(words.ids)} ids: give one for each")
        words.pieces = split_text(words.whole_text, words.ids)
        return words

    def release(self) -> None:
        """Let an answer that waits at ``hold_after`` go on, and later ones of these words not wait."""
        self.hold_after = None
        self.on_release()

    @property
    def whole_text(self) -> str:
        return "".join(text for _, text in self._segments())

    def parts(self, kind: str) -> list[str]:
        """What each id adds to the ``reasoning`` or the ``content``; mostly one character or nothing."""
        start = 0
        for name, text in self._segments():
            if name == kind:
                break
            start += len(text)
        else:
            return [""] * len(self.ids)
        end, at, parts = start + len(text), 0, []
        for piece in self.pieces:
            parts.append(piece[max(0, start - at) : max(0, end - at)])
            at += len(piece)
        return parts

    def _segments(self) -> list[tuple[str, str]]:
        thought = [("mark", "<think>"), ("reasoning", self.reasoning), ("mark", "</think>")] if self.reasoning else []
        return [*thought, ("content", self.content), *(("mark", call.spelled) for call in self.tool_calls)]


def split_text(text: str, ids: list[int]) -> list[str]:
    """A piece of the text for each id: what it decodes to, or an equal share where ids and text are strangers."""
    if decode(ids) == text:
        return [decode([token_id]) for token_id in ids]
    return [text[at * len(text) // len(ids) : (at + 1) * len(text) // len(ids)] for at in range(len(ids))]


def default_logprob(at: int, token_id: int) -> float:
    """The scripted logprob of an id at a place in the answer: the same everywhere, exact also in float32, never 0."""
    return -(1 + (token_id * 7 + at) % 1023) / 256
