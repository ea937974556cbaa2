"""The append-only graph behind a trace: nodes, the edges they are found by, and the searches over them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from .canonical import has_media
from .experts import RoutedRows
from .lines import Line, Lines, make_line
from .matcher import STRICT_MATCHER, MessageKey
from .node import ROOT, Message, MessageNode, RenderContext
from .packed import Ids, begins_with

NODE_BYTES = 1800
"""What a node costs beside its arrays and its message's text (measured with tracemalloc, rounded up)."""


def request_key(keys: Iterable[MessageKey], context: bytes) -> bytes:
    """Key of a whole request: its messages in order, and what they are rendered with."""
    return blake2b(context + b"".join(key.hash for key in keys), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Match:
    """A request's place: keys of all its messages, the path of the stored prefix, the key of the whole.

    Its first ``count`` messages are those of ``line``, one by one.
    """

    keys: tuple[MessageKey, ...]
    path: tuple[int, ...]
    request: bytes
    line: Line | None
    count: int


class MessageGraph:
    """Nodes by id, children by (parent, message hash, render-context hash).

    Several nodes under one edge are *twins*: the same message with other tokens. Nothing linked is ever unlinked, so a
    thread may search while the one loop that owns the graph appends.
    """

    def __init__(self) -> None:
        self.nodes: list[MessageNode] = []
        self.contexts: dict[bytes, RenderContext] = {}
        self.answers: dict[bytes, list[int]] = {}
        """Sampled nodes by request key, oldest first."""
        self.expert_shape: tuple[int, int] | None = None
        """(num_layers, top_k) of the routed experts, None as long as there are none."""
        self.has_media = False
        """Whether any message holds anything but text."""
        self.lines = Lines()
        self.node_bytes = 0
        """Bytes of nodes and contexts."""
        self._edges: dict[tuple[int, bytes, bytes], list[int]] = {}
        self._roots: list[int] = []

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.node_bytes + self.lines.nbytes

    def children(self, node_id: int) -> list[int]:
        """Ids of the nodes behind ``node_id``, of the first messages for ``ROOT``."""
        return self._roots if node_id == ROOT else self.nodes[node_id].children

    def twins(self, parent_id: int, message_hash: bytes, context: bytes) -> Sequence[int]:
        """Ids under one edge, oldest first."""
        return self._edges.get((parent_id, message_hash, context), ())

    def path(self, node_id: int) -> list[int]:
        """Node ids from the root to ``node_id``; empty for ``ROOT``."""
        if node_id == ROOT:
            return []
        depth = self.nodes[node_id].depth
        if line := self.lines.holding(node_id, depth):
            return line.path[:depth]
        path = []
        while node_id != ROOT:
            path.append(node_id)
            node_id = self.nodes[node_id].parent_id
        path.reverse()
        return path

    def token_ids(self, node_id: int) -> Ids:
        """All tokens of the trajectory up to and including ``node_id``; a new array."""
        if node_id != ROOT and (line := self.lines.holding(node_id, self.nodes[node_id].depth)):
            return line.ids[: self.nodes[node_id].end]
        ids: Ids = array("i")
        for on_path in self.path(node_id):
            ids += self.nodes[on_path].token_ids
        return ids

    def append(self, nodes: Iterable[MessageNode], context: RenderContext) -> None:
        """Link nodes whose ids and parents continue the graph; nothing in here raises half-way."""
        for node in nodes:
            if node.context not in self.contexts:
                self.contexts[node.context] = context
                self.node_bytes += len(json.dumps([context.tools, dict(context.template_kwargs)]))
            self.nodes.append(node)
            self.has_media = self.has_media or has_media(node.message)
            self.node_bytes += NODE_BYTES + 4 * len(node.token_ids) + 8 * len(node.logprobs)
            self.node_bytes += len(json.dumps(node.message))
            if node.turn is not None:
                self.answers.setdefault(node.turn.request, []).append(node.node_id)
            twins = self._edges.setdefault((node.parent_id, node.key.hash, node.context), [])
            twins.append(node.node_id)
            if len(twins) > 1:
                self.lines.twinned.update(twins)
            self.children(node.parent_id).append(node.node_id)

    def keep_line(self, leaf: MessageNode, match: Match, sent: Sequence[Message]) -> None:
        """Unroll the branch of a new leaf; ``sent`` are the messages of the request that it answers, as they came."""
        path = [*self.path(leaf.parent_id), leaf.node_id]
        known = match.line
        if known is not None and known.goes_on(path) and len(known.ids) == self.nodes[known.path[-1]].end:
            ids, done = known.ids, len(known.path)  # grown in place: nothing else goes on from there yet
        else:
            ids, done = self.token_ids(leaf.parent_id), len(path) - 1
        for node_id in path[done:]:
            ids += self.nodes[node_id].token_ids
        messages = [*sent, leaf.message]
        places = zip(messages[match.count :], path[match.count :], strict=True)
        own = sum(len(json.dumps(form)) for form, node_id in places if form is not self.nodes[node_id].message)
        keys = [*match.keys, leaf.key]
        self.lines.put(make_line(leaf.context, path, messages, keys, ids, plain=match.count, own=own, known=known))

    def attach_experts(self, node_id: int, routed: RoutedRows) -> None:
        """Give the rows to the nodes on the path to ``node_id``; a row that is there already stays."""
        self.expert_shape = self.expert_shape or routed.rows.shape[1:]
        end = routed.start + len(routed.rows)
        while node_id != ROOT:
            node = self.nodes[node_id]
            if node.end <= routed.start:
                return
            if node.start < end:
                self.node_bytes += node.experts.fill(routed.start - node.start, routed.rows, len(node.token_ids))
            node_id = node.parent_id

    # -- searches ------------------------------------------------------------------------------------------------

    def match(
        self, messages: Sequence[Mapping[str, Any]], context: bytes, make_key: Callable[[Mapping[str, Any]], MessageKey]
    ) -> Match:
        """Where a request stands: the path of the stored prefix to go on from, and what it was told by."""
        line, count = self.lines.begun_by(messages, context)
        if line is not None:
            path, keys = line.path[:count], line.keys[:count]
        else:
            path = self._plain_prefix(messages, context)
            keys = [self.nodes[node_id].key for node_id in path]
        frontier = [path[-1] if path else ROOT]
        ends: list[int] = []
        for message in messages[len(path) :]:
            key = self._known_key(frontier, context, message) or make_key(message)
            keys.append(key)
            frontier, done = self.advance(frontier, key, context, lambda _: True)
            ends += done
        path = self.path(self._best_match(ends + frontier, messages))
        request = line.request_key(keys) if line is not None else request_key(keys, context)
        return Match(tuple(keys), tuple(path), request, line, count)

    def _plain_prefix(self, messages: Iterable[Mapping[str, Any]], context: bytes) -> list[int]:
        """The path as long as there is one way to go and its message equals the next: most of a long history."""
        path: list[int] = []
        children = self._roots
        for message in messages:
            if len(children) != 1:
                break
            child = self.nodes[children[0]]
            if child.message != message or not child.is_plain or child.context != context:
                break
            path.append(child.node_id)
            children = child.children
        return path

    def _known_key(self, frontier: Iterable[int], context: bytes, message: Mapping[str, Any]) -> MessageKey | None:
        """The key of a stored message that equals this one, so that it is not hashed again each turn."""
        for parent in frontier:
            for child_id in self.children(parent)[-4:]:
                child = self.nodes[child_id]
                if child.is_plain and child.context == context and child.message == message:
                    return child.key
        return None

    def advance(
        self, frontier: list[int], key: MessageKey, context: bytes, is_match: Callable[[MessageNode], bool]
    ) -> tuple[list[int], list[int]]:
        """One message further: the matching children of ``frontier``, and the nodes in it that have none."""
        reached: list[int] = []
        ends: list[int] = []
        for parent in frontier:
            twins = self.twins(parent, key.hash, context)
            matching = [twin for twin in twins if key.accepts(self.nodes[twin].key) and is_match(self.nodes[twin])]
            reached += matching
            if not matching:
                ends.append(parent)
        return reached, ends

    def _best_match(self, ends: Sequence[int], messages: Sequence[Mapping[str, Any]]) -> int:
        """Which of the matched prefixes ending in ``ends`` to go on from.

        The one with the most messages up to its last sampled one; then the longer; then the one whose last sampled
        message reads exactly as the client's, was not abandoned, was delivered, is younger.
        """
        if len(ends) == 1:
            return ends[0]

        def rank(end: int) -> tuple[int, int, bool, bool, bool, int]:
            anchor = self.anchor(end)
            if anchor is None:
                return (0, 0 if end == ROOT else self.nodes[end].depth, False, False, False, end)
            is_same = STRICT_MATCHER.key(anchor.message) == STRICT_MATCHER.key(messages[anchor.depth - 1])
            return (
                anchor.depth,
                self.nodes[end].depth,
                is_same,
                not anchor.is_abandoned,
                anchor.is_delivered,
                end,
            )

        return max(ends, key=rank)

    def exact_path(
        self, path: Sequence[int], keys: Sequence[MessageKey], context: bytes, prompt: Ids, *, begun: int = 0
    ) -> list[int]:
        """Deepest path whose messages have ``keys`` and whose tokens begin ``prompt``; ``path`` is tried first.

        The tokens of its first ``begun`` nodes are not compared: the caller copied them into the prompt.
        """
        if not self._begins(prompt, path, begun):
            path = ()
        frontier: list[int] = [path[-1] if path else ROOT]
        ends: list[int] = []
        for key in keys[len(path) :]:
            frontier, done = self.advance(
                frontier, key, context, lambda node: prompt[node.start : node.end] == node.token_ids
            )
            ends += done
            if not frontier:
                break
        return self.path(max(ends + frontier, key=self._exact_rank))

    def _begins(self, prompt: Ids, path: Sequence[int], begun: int) -> bool:
        """Whether the tokens of the nodes behind the first ``begun`` ones stand where they belong in ``prompt``."""
        if not begun:
            return not path or begins_with(prompt, self.token_ids(path[-1]))
        nodes = (self.nodes[node_id] for node_id in path[begun:])
        return all(prompt[node.start : node.end] == node.token_ids for node in nodes)

    def anchor(self, node_id: int) -> MessageNode | None:
        """The nearest sampled node up to and including ``node_id``."""
        anchor_id = ROOT if node_id == ROOT else self.nodes[node_id].anchor_id
        return None if anchor_id == ROOT else self.nodes[anchor_id]

    def _exact_rank(self, node_id: int) -> tuple[int, int, int, bool, bool, int]:
        """Most tokens first, then most of them sampled rather than copied as context, then as ``_best_match``."""
        if node_id == ROOT:
            return (0, 0, 0, False, False, ROOT)
        node = self.nodes[node_id]
        anchor = self.anchor(node_id)
        if anchor is None:
            return (node.end, 0, node.depth, False, False, node_id)
        return (node.end, anchor.depth, node.depth, not anchor.is_abandoned, anchor.is_delivered, node_id)
