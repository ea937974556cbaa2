"""Splits a growing answer into thinking, content and tool calls, as the servers' parsers for Qwen3 do.

Thinking needs no opening tag: an answer is thinking until ``</think>`` or a tool call. A tool call is
``<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>``; one that is broken or unfinished stays content.
"""

import json
import uuid
from dataclasses import dataclass, field
from enum import Enum, auto

THINK_START, THINK_END = "<think>", "</think>"
CALL_START, CALL_END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One whole call; ``arguments`` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Parsed:
    """What a piece of text added."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)


class _State(Enum):
    OPENING = auto()
    THINKING = auto()
    CONTENT = auto()
    CALL = auto()


class AnswerParser:
    """Holds back what may be the beginning of a tag, and white space that may only separate tool calls."""

    def __init__(self, is_thinking: bool, parses_tools: bool) -> None:
        self._state = _State.OPENING if is_thinking else _State.CONTENT
        self._parses_tools = parses_tools
        self._held = ""

    def add(self, text: str, is_last: bool = False) -> Parsed:
        """Return what ``text`` adds; with ``is_last`` nothing is held back any longer."""
        self._held += text
        parsed = Parsed()
        while self._step(parsed, is_last):
            pass
        return parsed

    def _step(self, parsed: Parsed, is_last: bool) -> bool:
        """Consume up to the next tag; False when there is none."""
        if self._state is _State.OPENING:
            return self._open(is_last)
        if self._state is _State.THINKING:
            return self._think(parsed, is_last)
        if self._state is _State.CONTENT:
            return self._say(parsed, is_last)
        return self._call(parsed, is_last)

    def _open(self, is_last: bool) -> bool:
        """Drop a ``<think>`` at the very beginning."""
        if THINK_START.startswith(self._held) and self._held != THINK_START and not is_last:
            return False
        self._held = self._held.removeprefix(THINK_START)
        self._state = _State.THINKING
        return True

    def _think(self, parsed: Parsed, is_last: bool) -> bool:
        before, tag = self._until((THINK_END, CALL_START) if self._parses_tools else (THINK_END,), is_last)
        parsed.reasoning += before
        if not tag:
            return False
        self._state = _State.CONTENT
        if tag == CALL_START:
            self._held = CALL_START + self._held
        return True

    def _say(self, parsed: Parsed, is_last: bool) -> bool:
        if not self._parses_tools:
            parsed.content += self._held
            self._held = ""
            return False
        before, tag = self._until((CALL_START,), is_last)
        if tag:
            parsed.content += before.rstrip()
            self._state = _State.CALL
            return True
        said = before if is_last else before.rstrip()
        self._held = before[len(said) :] + self._held
        parsed.content += said
        return False

    def _call(self, parsed: Parsed, is_last: bool) -> bool:
        """Consume a whole call; what is none becomes content."""
        inner, tag, rest = self._held.partition(CALL_END)
        if not tag:
            if is_last:
                parsed.content += CALL_START + self._held
                self._held = ""
            return False
        self._held, self._state = rest, _State.CONTENT
        call = _read_call(inner)
        if call is None:
            parsed.content += CALL_START + inner + CALL_END
        else:
            parsed.tool_calls.append(call)
        return True

    def _until(self, tags: tuple[str, ...], is_last: bool) -> tuple[str, str]:
        """Take the text before the first of ``tags`` and that tag; without one, all that cannot begin one."""
        found = [(self._held.find(tag), tag) for tag in tags if tag in self._held]
        if found:
            start, tag = min(found)
            before, self._held = self._held[:start], self._held[start + len(tag) :]
            return before, tag
        kept = 0 if is_last else max(_overlap(self._held, tag) for tag in tags)
        end = len(self._held) - kept
        before, self._held = self._held[:end], self._held[end:]
        return before, ""


def _overlap(text: str, tag: str) -> int:
    """Return how many characters at the end of ``text`` are the beginning of ``tag``."""
    return next((length for length in range(len(tag) - 1, 0, -1) if text.endswith(tag[:length])), 0)


def _read_call(text: str) -> ToolCall | None:
    try:
        call = json.loads(text)
    except json.JSONDecodeError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = json.dumps(call.get("arguments", {}), ensure_ascii=False)
    return ToolCall(f"call_{uuid.uuid4().hex[:24]}", call["name"], arguments)
