"""Where two id sequences for one conversation differ, and what that means."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import RenderError
from .packed import Ids, first_difference
from .render import RenderedPrompt, Renderer
from .session_trace import Mismatch
from .tokenizer import Tokenizer
from .turn import PendingTurn

TEMPLATE = "template"
RETOKENISED = "retokenised"
OTHER = "other"

SPECIAL_TOKENS = "special_tokens"
ENVIRONMENT_TEXT = "environment_text"
ASSISTANT_TEXT = "assistant_text"


def classify_drift(turn: PendingTurn, expected: Ids, actual: Ids, renderer: Renderer, tokenizer: Tokenizer) -> str:
    """Why a worker's prompt is not the expected one. Slow: for a thread.

    ``retokenised``: the same text, cut otherwise. ``template``: the worker rendered the messages by the template alone.
    """
    if tokenizer.decode(expected) == tokenizer.decode(actual):
        return RETOKENISED
    try:
        anew = renderer.render(turn.messages, turn.render_context)
    except RenderError:
        return OTHER
    return TEMPLATE if anew.ids == actual else OTHER


def compare_anew(
    turn: PendingTurn, prompt: RenderedPrompt, renderer: Renderer, tokenizer: Tokenizer
) -> list[tuple[str, int, str]]:
    """(kind, position, detail) of each stretch in which a prompt differs from the conversation rendered anew.

    Both are cut at their control tokens. Slow: for a thread.
    """
    messages = turn.messages
    try:
        anew = renderer.render(messages, turn.render_context)
    except RenderError as error:
        return [(ENVIRONMENT_TEXT, 0, f"cannot be rendered anew: {error}")]
    if anew.ids == prompt.ids:
        return []
    ours = _stretches(prompt.ids, tokenizer.special_ids)
    theirs = _stretches(anew.ids, tokenizer.special_ids)
    if [ids[:1] for _, ids in ours[1:]] != [ids[:1] for _, ids in theirs[1:]]:
        position = next(
            (start for (start, mine), (_, other) in zip(ours[1:], theirs[1:], strict=False) if mine[:1] != other[:1]),
            min(len(prompt.ids), len(anew.ids)),
        )
        kind = ASSISTANT_TEXT if _is_assistants(turn, prompt, position) else SPECIAL_TOKENS
        return [(kind, position, f"{len(ours) - 1} control tokens, anew {len(theirs) - 1}")]
    found = []
    for (start, mine), (_, other) in zip(ours, theirs, strict=True):
        if mine != other:
            position = start + first_difference(mine, other)
            kind = ASSISTANT_TEXT if _is_assistants(turn, prompt, position) else ENVIRONMENT_TEXT
            found.append((kind, position, f"{len(mine)} tokens from {start} on, anew {len(other)}"))
    return found


def to_mismatches(node_id: int, found: Sequence[tuple[str, int, str]]) -> list[Mismatch]:
    """Findings about the prompt of one answer."""
    return [Mismatch(node_id, kind, position, detail) for kind, position, detail in found]


def _stretches(ids: Ids, special: frozenset[int]) -> list[tuple[int, Ids]]:
    """(start, ids) of what comes before the first control token, and of each of them with what follows it."""
    starts = [0, *(position for position, token_id in enumerate(ids) if token_id in special)]
    return [(start, ids[start:end]) for start, end in zip(starts, [*starts[1:], len(ids)], strict=True)]


def _is_assistants(turn: PendingTurn, prompt: RenderedPrompt, position: int) -> bool:
    """Whether the token at ``position``, or the one before it where the prompt ends, is of an assistant's message."""
    position = min(position, len(prompt.ids) - 1)
    if position >= prompt.labelled_from:
        owner = prompt.message_indices[position - prompt.labelled_from]
    else:
        owner = next(at for at, node_id in enumerate(turn.path) if turn.graph.nodes[node_id].end > position)
    return 0 <= owner < len(turn.keys) and turn.messages[owner]["role"] == "assistant"
