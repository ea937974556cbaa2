"""Splits a growing answer into reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

from .interface import Delta, ToolCall, ToolForm
from .marks import find_first, held_back

THINK_START, THINK_END = "<think>", "</think>"


class _State(Enum):
    OPENING = auto()
    """Nothing but white space came."""
    THINKING = auto()
    STARTING = auto()
    """Thinking is over or there is none, and no content came yet."""
    CONTENT = auto()
    CALL = auto()


class AnswerParser:
    """One answer. ``form`` None: no tool calls are looked for.

    Reasoning begins with ``<think>`` at the very beginning, or in the prompt (``is_thinking``), and ends with
    ``</think>`` or where a tool call opens. Both texts are left as the model wrote them; white space is dropped where
    it only stands around tool calls.
    """

    def __init__(
        self,
        form: ToolForm | None,
        tools: Sequence[Any] = (),
        *,
        is_thinking: bool = False,
        parses_reasoning: bool = True,
    ) -> None:
        self._form = form
        self._tools = tools
        self._markers: tuple[str, ...] = tuple(form.markers) if form is not None else ()
        self._state = _State.OPENING if parses_reasoning else _State.STARTING
        self._was_open = is_thinking
        self._held = ""
        self._gap = ""
        """White space before what may be a call."""
        self._has_calls = False
        self._skipped = 0
        """Length of what was held for a call and is none."""

    def feed(self, text: str) -> Delta:
        """What ``text`` adds."""
        self._held += text
        return self._run(is_last=False)

    def end(self) -> Delta:
        """What was held back; no text follows."""
        return self._run(is_last=True)

    def _run(self, *, is_last: bool) -> Delta:
        reasoning: list[str] = []
        content: list[str] = []
        calls: list[ToolCall] = []
        steps = {
            _State.OPENING: lambda: self._open(is_last),
            _State.THINKING: lambda: self._think(reasoning, is_last),
            _State.STARTING: lambda: self._start(is_last),
            _State.CONTENT: lambda: self._say(content, is_last),
            _State.CALL: lambda: self._call(calls, is_last),
        }
        while steps[self._state]():
            pass
        return Delta("".join(reasoning), "".join(content), tuple(calls))

    def _open(self, is_last: bool) -> bool:
        said = self._held.lstrip()
        if THINK_START.startswith(said) and said != THINK_START and not is_last:
            return False
        if said.startswith(THINK_START):
            self._held = said[len(THINK_START) :]
            self._state = _State.THINKING
        else:
            self._state = _State.THINKING if self._was_open else _State.STARTING
        return True

    def _think(self, reasoning: list[str], is_last: bool) -> bool:
        ends = (THINK_END, *self._markers)
        start, marker = find_first(self._held, ends)
        if not marker:
            end = len(self._held) - (0 if is_last else held_back(self._held, ends))
            reasoning.append(self._held[:end])
            self._held = self._held[end:]
            return False
        reasoning.append(self._held[:start])
        self._held = self._held[start:].removeprefix(THINK_END)
        self._state = _State.STARTING
        return True

    def _start(self, is_last: bool) -> bool:
        """Whether the content is a call as a whole can only be told at its beginning."""
        is_call: bool | None = False
        if self._form is not None:
            is_call = self._form.opens(self._held.lstrip(), self._tools)
            if is_call is None and not is_last:
                return False
        self._state = _State.CONTENT
        if is_call:
            self._begin_call(len(self._held) - len(self._held.lstrip()))
        return True

    def _say(self, content: list[str], is_last: bool) -> bool:
        start, marker = find_first(self._held, self._markers, self._skipped)
        if marker:
            said = self._held[:start].rstrip()
            content.append(said)
            self._held = self._held[len(said) :]
            self._begin_call(start - len(said))
            return True
        end = len(self._held)
        if not is_last and self._markers:
            end -= held_back(self._held, self._markers)
            # White space that may stand before a call.
            end = len(self._held[:end].rstrip())
        said, self._held = self._held[:end], self._held[end:]
        self._skipped = 0
        if self._has_calls and not said.strip():
            said = ""
        content.append(said)
        return False

    def _begin_call(self, gap: int) -> None:
        self._gap, self._held = self._held[:gap], self._held[gap:]
        self._state, self._skipped = _State.CALL, 0

    def _call(self, calls: list[ToolCall], is_last: bool) -> bool:
        if self._form is None:
            raise RuntimeError("a call was begun without a form")
        found = self._form.read(self._held, self._tools, is_last=is_last)
        if found is None:
            return False
        self._state = _State.CONTENT
        if isinstance(found, bool):
            # Its beginning is content, and what follows is read again.
            marker = next((mark for mark in self._markers if self._held.startswith(mark)), self._held[:1])
            self._skipped = len(self._gap) + len(marker)
            self._held = self._gap + self._held
            return True
        read, length = found
        calls.extend(read)
        self._has_calls = True
        self._held = self._held[length:]
        return True
