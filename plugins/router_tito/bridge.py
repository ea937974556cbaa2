"""The bridge: ids of the messages that follow a sampled answer, without rendering what comes before it.

The tail is rendered behind a short conversation that ends with an assistant turn saying a sentinel. What follows the
sentinel in the text is the end of an assistant turn, the tail, and the generation prompt. Whether a template lets
itself be cut like this is tried out once for each sequence of roles and each render context.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

from .errors import RenderError
from .node import SCAFFOLD, Message, RenderContext
from .packed import Ids
from .template import ChatTemplate, context_key, make_room
from .tokenizer import Tokenizer

SENTINEL = "sentinel-of-the-bridge-9b1f27"
BRIDGED_ROLES = frozenset({"system", "user", "tool"})
"""An assistant message in the tail was not sampled here, a developer's is placed as each template sees fit."""


class NoBridgeError(RenderError):
    """This turn cannot be bridged; the text is a short stable label. The prompt is rendered whole instead."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Ids behind a sampled answer, its close first, and the tail message each belongs to (``SCAFFOLD`` for none)."""

    ids: Ids
    message_indices: Ids


class Bridge:
    """Renders tails behind a sentinel, and knows for which sequences of roles that is exact."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._faults: dict[tuple[tuple[str, ...], bytes], str] = {}
        self._prompts: dict[bytes, str] = {}

    def tail(self, messages: Sequence[Message], context: RenderContext) -> Tail:
        """Ids of ``messages`` behind an assistant turn; ``NoBridgeError`` if a message or the template forbids it."""
        if not messages:
            raise NoBridgeError("no_tail")
        for message in messages:
            if message["role"] not in BRIDGED_ROLES:
                raise NoBridgeError(f"role_{message['role']}")
        fault = self.fault(tuple(message["role"] for message in messages), context)
        if fault:
            raise NoBridgeError(fault)
        text = self._after_sentinel(messages, context)
        return self._label(messages, text, context)

    def fault(self, roles: Sequence[str], context: RenderContext) -> str:
        """Why tails of these roles cannot be bridged in this context, "" if they can; tried once and remembered."""
        pattern = collapse(roles)
        place = (pattern, context_key(context))
        if place not in self._faults:
            make_room(self._faults)
            self._faults[place] = self._try_out(pattern, context)
        return self._faults[place]

    def generation_prompt(self, context: RenderContext) -> str:
        """Text the template puts before an answer; remembered."""
        key = context_key(context)
        if key not in self._prompts:
            make_room(self._prompts)
            probe: list[Message] = [{"role": "user", "content": "probe question"}]
            whole = self._template.render(probe, context, generation_prompt=True)
            without = self._template.render(probe, context, generation_prompt=False)
            self._prompts[key] = whole[len(without) :] if whole.startswith(without) else whole
        return self._prompts[key]

    def _after_sentinel(
        self, tail: Sequence[Message], context: RenderContext, *, generation_prompt: bool = True
    ) -> str:
        probe = [{"role": "user", "content": "probe question"}, {"role": "assistant", "content": SENTINEL}, *tail]
        text = self._template.render(probe, context, generation_prompt=generation_prompt)
        if text.count(SENTINEL) != 1:
            raise NoBridgeError("sentinel_not_once")
        return text.partition(SENTINEL)[2]

    def _label(self, messages: Sequence[Message], text: str, context: RenderContext) -> Tail:
        cuts: dict[int, int] = {}
        for index in range(len(messages)):
            try:
                part = self._after_sentinel(messages[: index + 1], context, generation_prompt=False)
            except RenderError:  # no template needs to render half a tail
                continue
            if part and text.startswith(part):
                cuts[index] = len(part)
        segments = Segments.cut(text, cuts, len(messages))
        whole, *parts = self._tokenizer.encode_batch([text, *segments.texts])
        ids = array("i", whole)
        return Tail(ids, segments.label(ids, parts))

    def _try_out(self, pattern: tuple[str, ...], context: RenderContext) -> str:
        """Render a fixed conversation whole and by the bridge, in its first tool cycle and in a later one."""
        tail = _probe_tail(pattern)
        try:
            text = self._after_sentinel(tail, context)
            if any(text.count(str(message["content"])) != 1 for message in tail):
                return "tail_not_rendered"
            wholes = [self._render_some(history, tail, context) for history in _probe_histories(pattern)]
        except NoBridgeError as error:
            return str(error)
        except RenderError:
            return "template_refused"
        bridged, *rendered = self._tokenizer.encode_batch([text, *wholes])
        if not bridged or any(whole[-len(bridged) :] != bridged for whole in rendered):
            return "template_differs"
        return ""

    def _render_some(self, history: list[Message], tail: Sequence[Message], context: RenderContext) -> str:
        """The whole conversation; without its system message, or with one call an answer, if the template insists."""
        single = [{**m, "tool_calls": m["tool_calls"][:1]} if "tool_calls" in m else m for m in history]
        for messages in (history, history[1:], single):
            try:
                return self._template.render([*messages, *tail], context, generation_prompt=True)
            except RenderError:
                continue
        return self._template.render([*single[1:], *tail], context, generation_prompt=True)


def collapse(roles: Sequence[str]) -> tuple[str, ...]:
    """Roles with runs of three and more cut to two: how a template joins two it joins all."""
    return tuple(role for role, run in groupby(roles) for _ in range(min(2, len(list(run)))))


@dataclass(frozen=True, slots=True)
class Segments:
    """A rendered text cut where its messages end. ``texts`` are to be encoded alone, ``owners`` say whose each is."""

    texts: list[str]
    owners: list[int]

    @classmethod
    def cut(cls, text: str, cuts: Mapping[int, int], count: int, first: int = 0) -> Segments:
        """``cuts[i]`` is where message i of ``count`` ends in ``text``.

        One without a cut shares the text of the next that has one, owned by the first of them; behind the last cut is
        the generation prompt. Messages before ``first`` are not told apart.
        """
        start = cuts.get(first - 1, 0)
        texts: list[str] = []
        owners: list[int] = []
        owner = first
        for index in range(first, count):
            end = cuts.get(index, -1)
            if end >= start:
                texts.append(text[start:end])
                owners.append(owner)
                start, owner = end, index + 1
        return cls([*texts, text[start:]], [*owners, owner if owner < count else SCAFFOLD])

    def label(self, ids: Ids, parts: Sequence[Sequence[int]]) -> Ids:
        """The owner of each of ``ids``, the ids of the whole text, given those of each segment.

        They are compared from the end backwards: where they differ, a token lies across the cut and belongs to neither
        side, and all that is before it gets the first label.
        """
        labels: list[tuple[int, int]] = []
        end = len(ids)
        for part, owner in zip(reversed(parts), reversed(self.owners), strict=True):
            if len(part) > end or ids[end - len(part) : end] != array("i", part):
                break
            labels.append((owner, len(part)))
            end -= len(part)
        indices: Ids = array("i", self.owners[:1]) * end
        for owner, length in reversed(labels):
            indices += array("i", [owner]) * length
        return indices


def _probe_tail(pattern: Sequence[str]) -> list[Message]:
    tail: list[Message] = []
    for index, role in enumerate(pattern):
        message: Message = {"role": role, "content": f"probe {role} {index}"}
        if role == "tool":
            message |= {"tool_call_id": f"call0000{index}", "name": "probe_fn"}
        tail.append(message)
    return tail


def _probe_histories(pattern: Sequence[str]) -> tuple[list[Message], list[Message]]:
    """Conversations that end with an assistant turn such a tail may follow: the first of its kind, and a later one."""
    tools = len(list(takewhile("tool".__eq__, pattern)))
    start: list[Message] = [
        {"role": "system", "content": "probe system"},
        {"role": "user", "content": "probe question"},
    ]
    middle = _probe_tail(["tool"] * tools or ["user"])
    for message in middle:
        message["content"] = f"earlier {message['content']}"
    return [*start, _probe_answer(tools)], [*start, _probe_answer(tools), *middle, _probe_answer(tools)]


def _probe_answer(calls: int) -> Message:
    if not calls:
        return {"role": "assistant", "content": "probe answer"}
    tool_calls = [
        {"type": "function", "id": f"call0000{index}", "function": {"name": "probe_fn", "arguments": "{}"}}
        for index in range(calls)
    ]
    return {"role": "assistant", "content": "", "tool_calls": tool_calls}
