"""A turn between its request and its commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .graph import Match, MessageGraph
from .matcher import MessageKey
from .node import Message, MessageNode, RenderContext
from .packed import Ids, pack_ids


@dataclass(frozen=True, slots=True, eq=False)
class PendingTurn:
    """One request's place in the trace.

    It holds no lock. The trace only grows, so what was matched stays true while the engine runs; commit looks again.
    """

    graph: MessageGraph
    turn_id: int
    match: Match
    tail: Sequence[Message]
    """The messages behind the longest matched prefix."""
    sent: Sequence[Message]
    """All messages as the client sent them."""
    context: bytes
    render_context: RenderContext

    @property
    def path(self) -> tuple[int, ...]:
        """The longest matched prefix, as node ids from the root."""
        return self.match.path

    @property
    def keys(self) -> tuple[MessageKey, ...]:
        """Keys of all messages."""
        return self.match.keys

    @property
    def request(self) -> bytes:
        """Key of the whole request, equal for a retry."""
        return self.match.request

    @property
    def messages(self) -> Sequence[Message]:
        """All messages, the matched ones as stored: those may hold what the client left out, such as reasoning."""
        return self.messages_from(0)

    def messages_from(self, first: int) -> Sequence[Message]:
        """Those from ``first`` on."""
        stored = [self.graph.nodes[node_id].message for node_id in self.path[first:]]
        return [*stored, *self.tail[max(first - len(self.path), 0) :]]

    @property
    def anchor(self) -> MessageNode | None:
        """The last matched *sampled* node, None if nothing matched was sampled."""
        return self.graph.anchor(self.path[-1]) if self.path else None

    @property
    def anchor_node_id(self) -> int | None:
        """Id of the anchor."""
        anchor = self.anchor
        return anchor.node_id if anchor else None

    def bridge_anchor(self) -> tuple[Ids, Ids] | None:
        """``(prompt_ids, completion_ids)`` of the anchor: the exact ids up to and including its last sampled one."""
        anchor = self.anchor
        if anchor is None:
            return None
        ids = self.graph.token_ids(anchor.node_id)
        return ids[: anchor.start + anchor.sampled_start], anchor.sampled_ids

    @property
    def bridge_tail(self) -> Sequence[Message]:
        """The messages behind the anchor: the tail, and what matched between anchor and tail."""
        anchor = self.anchor
        return self.messages_from(anchor.depth if anchor else 0)

    def exact_path(self, prompt_ids: Sequence[int], *, begun: int = 0) -> list[int]:
        """The nodes, from the root, whose messages match and whose tokens are the beginning of ``prompt_ids``.

        ``begun``: so many nodes of ``path`` are known to be among them, since their ids were copied.
        """
        prompt = pack_ids(prompt_ids, "prompt ids")
        return self.graph.exact_path(self.path, self.keys, self.context, prompt, begun=begun)
