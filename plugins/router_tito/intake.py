"""From an engine's answer to the nodes it adds: what may be kept, and which prompt token belongs to which message."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .canonical import is_plain_message
from .errors import MessageError, TokenMismatchError, TurnRefusedError
from .node import ROOT, How, Message, MessageNode, ModelTurnResult, TurnFacts
from .packed import Ids, Logprobs, check_ids, first_difference, pack_ids, pack_logprobs

if TYPE_CHECKING:
    from .graph import MessageGraph
    from .matcher import Matcher, MessageKey
    from .turn import PendingTurn

REFUSED_FINISHES = {
    "abort": "aborted",
    "aborted": "aborted",
    "cancelled": "aborted",
    "error": "failed",
    "": "unfinished",
}
"""Finish reasons of answers that are no finished sample, and the reason under which they are counted."""


def check_result(result: ModelTurnResult) -> tuple[Ids, Ids, Logprobs]:
    """Prompt ids, completion ids and logprobs of an answer that may be trained on, else ``TurnRefusedError``."""
    if (result.finish_reason or "") in REFUSED_FINISHES:
        reason = REFUSED_FINISHES[result.finish_reason or ""]
        raise TurnRefusedError(reason, f"the answer ended with finish_reason {result.finish_reason!r}")
    completion = pack_ids(result.completion_ids, "completion ids")
    if not completion:
        raise TurnRefusedError("empty", "the answer has no sampled token")
    prompt = pack_ids(result.prompt_ids, "prompt ids")
    if not prompt:
        raise TurnRefusedError("bad_ids", "the answer's prompt ids are not known")
    check_ids(prompt, "prompt ids")
    check_ids(completion, "completion ids")
    if completion is result.completion_ids:
        completion = completion[:]  # kept as it is now, whatever the caller does with its array
    return prompt, completion, pack_logprobs(result.logprobs, len(completion))


def message_ends(
    indices: Sequence[int] | None, start: int, first: int, count: int, length: int, labelled: int = 0
) -> list[int]:
    """End positions of messages ``first`` to ``count - 1`` in a prompt of which ``start`` tokens are stored already.

    A token goes to the message it is labelled with; one without an owner, or of a message that is stored already, to
    the next message; what is left over at the end is the generation prompt. Without labels the first new message
    takes all, and nothing is guessed about the rest. The labels begin with token ``labelled``. ``TurnRefusedError`` if
    they run backwards.
    """
    if indices is None:
        return [length] * (count - first)
    if len(indices) != length - labelled or not 0 <= labelled <= start:
        why = f"{len(indices)} message indices from {labelled} on for {length} prompt tokens, {start} of them stored"
        raise TurnRefusedError("bad_indices", why)
    labels = np.asarray(indices[start - labelled :], dtype=np.int64)
    positions = np.flatnonzero(labels >= first)
    owners = labels[positions]
    if owners.size and (bool((np.diff(owners) < 0).any()) or int(owners[-1]) >= count):
        raise TurnRefusedError("bad_indices", f"message indices run backwards or past the {count} messages")
    ends: list[int] = []
    end = start
    for index in range(first, count):
        last = int(np.searchsorted(owners, index, side="right")) - 1
        if last >= 0 and int(owners[last]) == index:
            end = start + int(positions[last]) + 1
        ends.append(end)
    return ends


class _NodeBuilder:
    """Makes nodes that continue the graph, without linking them."""

    def __init__(self, graph: MessageGraph, context: bytes, parent_id: int) -> None:
        self._graph = graph
        self._context = context
        self.parent = None if parent_id == ROOT else graph.nodes[parent_id]
        self.nodes: list[MessageNode] = []

    def add(self, message: Message, key: MessageKey, token_ids: Ids, *, sampled_start: int) -> MessageNode:
        parent = self.parent
        node = MessageNode(
            node_id=len(self._graph.nodes) + len(self.nodes),
            parent_id=parent.node_id if parent else ROOT,
            message=message,
            key=key,
            context=self._context,
            is_plain=is_plain_message(message),
            depth=parent.depth + 1 if parent else 1,
            start=parent.end if parent else 0,
            token_ids=token_ids,
            sampled_start=sampled_start,
            anchor_id=parent.anchor_id if parent else ROOT,
        )
        self.nodes.append(node)
        self.parent = node
        return node


def build_nodes(
    graph: MessageGraph, matcher: Matcher, turn: PendingTurn, result: ModelTurnResult, request: bytes
) -> list[MessageNode]:
    """The nodes this answer adds behind the longest stored path its prompt begins with; the last one is sampled.

    Pure: the graph is read, not changed. ``TurnRefusedError`` or ``TokenMismatchError`` as ``Trace.commit`` says.
    """
    prompt, completion, logprobs = check_result(result)
    path = graph.exact_path(turn.path, turn.keys, turn.context, prompt)
    reused = graph.nodes[path[-1]].end if path else 0
    _check_reuse(graph, turn, result.reused_prefix_length, reused, prompt)
    first, count = len(path), len(turn.keys)
    ends = message_ends(result.prompt_message_indices, reused, first, count, len(prompt), result.labelled_from)
    builder = _NodeBuilder(graph, turn.context, path[-1] if path else ROOT)
    start = reused
    for message, key, end in zip(turn.messages_from(first), turn.keys[first:], ends, strict=True):
        builder.add(message, key, prompt[start:end], sampled_start=end - start)
        start = end
    message, key = _read_answer(matcher, result)
    head = prompt[start:]
    leaf = builder.add(message, key, head + completion, sampled_start=len(head))
    leaf.anchor_id = leaf.node_id
    leaf.logprobs = logprobs
    leaf.turn = _facts(graph, turn, result, request, reused)
    return builder.nodes


def _read_answer(matcher: Matcher, result: ModelTurnResult) -> tuple[Message, MessageKey]:
    """A copy of the answer's message, and its key."""
    try:
        message = {**deepcopy(dict(result.message)), "role": result.message.get("role", "assistant")}
        if message["role"] != "assistant":
            raise MessageError(f"an answer's role is {message['role']!r}, not 'assistant'")
        return message, matcher.key(message)
    except MessageError as error:
        raise TurnRefusedError("bad_message", f"the answer's message cannot be read: {error}") from error


def _check_reuse(graph: MessageGraph, turn: PendingTurn, claimed: int, reused: int, prompt: Ids) -> None:
    if claimed <= reused:
        return
    known = graph.token_ids(turn.path[-1]) if turn.path else array("i")
    position = first_difference(known, prompt)
    raise TokenMismatchError(
        position,
        f"{claimed} prompt tokens were to be reused, {reused} are; token {position} is the first other one",
    )


def _facts(graph: MessageGraph, turn: PendingTurn, result: ModelTurnResult, request: bytes, reused: int) -> TurnFacts:
    length = len(result.prompt_ids) + len(result.completion_ids)
    fault = result.routed_experts_fault
    if result.routed_experts is not None and not fault:
        fault = result.routed_experts.fault(length, graph.expert_shape)
    how: How = "bridge" if result.how == "bridge" and reused else "reuse" if reused else "render"
    return TurnFacts(
        turn_id=turn.turn_id,
        request=request,
        finish_reason=result.finish_reason,
        how=how,
        reused_tokens=reused,
        model=result.model,
        sampling_params=deepcopy(dict(result.sampling_params)),
        weight_version=result.weight_version,
        weight_versions=tuple(result.weight_versions),
        cached_tokens=result.cached_tokens,
        experts_fault=fault,
    )


def is_repeat(stored: MessageNode, new: MessageNode) -> bool:
    """Whether two answers to one request are the same tokens of the same weights, ended the same way."""
    if stored.turn is None or new.turn is None:
        return False
    if (stored.sampled_start, stored.token_ids) != (new.sampled_start, new.token_ids):
        return False
    # Whoever sent it, what is compared is what was asked and what came: not the cache's state or the reuse.
    return _compared(stored.turn) == _compared(new.turn)


def _compared(facts: TurnFacts) -> TurnFacts:
    return replace(facts, turn_id=0, how="render", reused_tokens=0, cached_tokens=None, experts_fault="")
