"""Messages to the exact ids of the next prompt: continued behind sampled ids where that is safe, else rendered whole.

Control tokens that a client types in a message are encoded as the engine would encode them; they are context like
the rest of the message and never trained on.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from .bridge import Bridge, NoBridgeError, Segments, Tail
from .errors import RenderError, UnrenderableError
from .node import How, Message, RenderContext
from .packed import Ids
from .template import ChatTemplate
from .tokenizer import Tokenizer
from .turn import PendingTurn

Thinking: TypeAlias = Literal["all", "tool_cycle", "template"]
"""Which earlier thinking a prompt keeps: what was sampled; that of the running tool cycle; what the template keeps."""

THINKING_MARKERS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
NO_CONTEXT = RenderContext((), {})


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """Ids to generate from. ``message_indices`` and ``labelled_from`` are as ``ModelTurnResult`` wants them.

    The first ``reused_prefix_length`` ids are copied from the trace or found equal to it. ``no_bridge`` says in one
    word why the prompt was rendered whole, "" if it was not.
    """

    ids: Ids
    message_indices: Ids
    reused_prefix_length: int
    how: How
    anchor_node_id: int | None = None
    no_bridge: str = ""
    labelled_from: int = 0


class Renderer:
    """Renders the turns of any number of sessions for one model. Slow (it tokenises): call it in a thread."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        thinking: Thinking = "all",
        thinking_markers: Sequence[tuple[str, str]] = THINKING_MARKERS,
        labelled_messages: int = 64,
    ) -> None:
        self._tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer)
        self.bridges = Bridge(tokenizer, self.template)
        self.thinking: Thinking = thinking
        encoded = tokenizer.encode_batch([text for pair in thinking_markers for text in pair])
        pairs = zip(thinking_markers, encoded[::2], encoded[1::2], strict=True)
        # A model whose markers are tokens of its own is searched for those; for others the answer's text is.
        self._thinking_ids = {m[0]: (o[0], c[0]) for m, o, c in pairs if len(o) == len(c) == 1}
        self._thinking_markers = [m for m in thinking_markers if not self._thinking_ids or m[0] in self._thinking_ids]
        self._labelled_messages = labelled_messages

    def render_turn(self, turn: PendingTurn) -> RenderedPrompt:
        """Ids of this turn's prompt. ``RenderError`` if its messages cannot become ids (its subclasses say why)."""
        anchor = turn.anchor
        if anchor is None:
            return self._render_whole(turn, "no_anchor")
        try:
            rest = self._continue(anchor.sampled_ids, turn.bridge_tail, turn.render_context)
        except NoBridgeError as error:
            return self._render_whole(turn, str(error))
        ids = turn.graph.token_ids(anchor.node_id)
        ids += rest.ids
        indices = array("i", [index + anchor.depth if index >= 0 else index for index in rest.message_indices])
        reused = turn.graph.nodes[turn.exact_path(ids, begun=anchor.depth)[-1]].end
        return RenderedPrompt(ids, indices, reused, "bridge", anchor.node_id, labelled_from=anchor.end)

    def bridge(
        self,
        prompt_ids: Ids,
        completion_ids: Ids,
        tail: Sequence[Message],
        context: RenderContext = NO_CONTEXT,
    ) -> RenderedPrompt:
        """``prompt_ids + completion_ids`` continued by the tail and a generation prompt; ``NoBridgeError`` if unsafe.

        ``message_indices`` are those of the tail's tokens. A close the model sampled is not written twice; one it
        did not sample, because it was cut off, is written and belongs to the context.
        """
        rest = self._continue(completion_ids, tail, context)
        ids = array("i", prompt_ids) + array("i", completion_ids)
        reused = len(ids)
        return RenderedPrompt(ids + rest.ids, rest.message_indices, reused, "bridge", labelled_from=reused)

    def _continue(self, completion_ids: Ids, tail: Sequence[Message], context: RenderContext) -> Tail:
        """What comes behind an answer; ``NoBridgeError`` if unsafe."""
        if not completion_ids:
            raise NoBridgeError("empty_completion")
        if self.thinking == "template" or (self.thinking == "tool_cycle" and any(m["role"] == "user" for m in tail)):
            raise NoBridgeError(f"thinking_{self.thinking}")
        if self._is_cut_in_thinking(completion_ids, context):
            raise NoBridgeError("cut_in_thinking")
        try:
            rest = self.bridges.tail(tail, context)
        except NoBridgeError:
            raise
        except UnrenderableError as error:
            raise NoBridgeError("content_not_text") from error
        except RenderError as error:
            raise NoBridgeError("template_refused") from error
        skipped = 1 if rest.ids and rest.ids[0] == completion_ids[-1] else 0
        return Tail(rest.ids[skipped:], rest.message_indices[skipped:])

    def render(self, messages: Sequence[Message], context: RenderContext = NO_CONTEXT) -> RenderedPrompt:
        """The whole conversation and a generation prompt, by the template alone."""
        text, ids = self._encode(messages, context)
        return RenderedPrompt(ids, self._label(messages, text, ids, context, 0), 0, "render")

    def _render_whole(self, turn: PendingTurn, no_bridge: str) -> RenderedPrompt:
        messages, context = turn.messages, turn.render_context
        text, ids = self._encode(messages, context)
        path = turn.exact_path(ids)
        indices = self._label(messages, text, ids, context, len(path))
        if not path:
            return RenderedPrompt(ids, indices, 0, "render", None, no_bridge)
        anchor = turn.graph.anchor(path[-1])
        reused = turn.graph.nodes[path[-1]].end
        return RenderedPrompt(ids, indices, reused, "reuse", anchor.node_id if anchor else None, no_bridge)

    def _encode(self, messages: Sequence[Message], context: RenderContext) -> tuple[str, Ids]:
        text = self.template.render(messages, context, generation_prompt=True)
        self.template.check_nothing_lost(messages, text, context)
        return text, array("i", self._tokenizer.encode_batch([text])[0])

    def _label(self, messages: Sequence[Message], text: str, ids: Ids, context: RenderContext, first: int) -> Ids:
        """Owners of the tokens from message ``first`` on: fewer messages, rendered, are a beginning of them all."""
        cuts: dict[int, int] = {}
        for index in range(max(first - 1, len(messages) - self._labelled_messages, 0), len(messages)):
            try:
                part = self.template.render(messages[: index + 1], context, generation_prompt=False)
            except RenderError:  # a template may insist on how a conversation ends
                continue
            if part and text.startswith(part):
                cuts[index] = len(part)
        segments = Segments.cut(text, cuts, len(messages), first)
        return segments.label(ids, self._tokenizer.encode_batch(segments.texts))

    def _is_cut_in_thinking(self, completion_ids: Ids, context: RenderContext) -> bool:
        """Whether the answer ended inside a thought that it or its generation prompt opened."""
        prompt = self.bridges.generation_prompt(context)
        text = "" if self._thinking_ids else self._tokenizer.decode(completion_ids)
        for open_text, close_text in self._thinking_markers:
            if self._thinking_ids:
                opened, closed = (_last_index(completion_ids, marker) for marker in self._thinking_ids[open_text])
            else:
                opened, closed = text.rfind(open_text), text.rfind(close_text)
            if opened == closed == -1:
                opened, closed = prompt.rfind(open_text), prompt.rfind(close_text)
            if opened > closed:
                return True
        return False


def _last_index(ids: Ids, wanted: int) -> int:
    positions = np.flatnonzero(np.frombuffer(ids, dtype=np.int32) == wanted)
    return int(positions[-1]) if positions.size else -1
