"""A turn between its request and its commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .graph import MessageGraph
from .matcher import MessageKey
from .node import Message, RenderContext
from .packed import Ids, pack_ids


@dataclass(frozen=True, slots=True, eq=False)
class PendingTurn:
    """One request's place in the trace: ``path`` is the longest matched prefix, as node ids from the root.

    It holds no lock. The trace only grows, so what was matched stays true while the engine runs; commit looks again.
    ``request`` is the key of the whole request, equal for a retry.
    """

    graph: MessageGraph
    turn_id: int
    messages: Sequence[Message]
    keys: tuple[MessageKey, ...]
    context: bytes
    render_context: RenderContext
    request: bytes
    path: tuple[int, ...]

    @property
    def tail(self) -> Sequence[Message]:
        """The messages behind the longest matched prefix."""
        return self.messages[len(self.path) :]

    @property
    def anchor_node_id(self) -> int | None:
        """The last matched *sampled* node, None if nothing matched was sampled."""
        anchor = self.graph.anchor(self.path[-1]) if self.path else None
        return anchor.node_id if anchor else None

    def bridge_anchor(self) -> tuple[Ids, Ids] | None:
        """``(prompt_ids, completion_ids)`` of the anchor: the exact ids up to and including its last sampled one."""
        anchor = self.graph.anchor(self.path[-1]) if self.path else None
        if anchor is None:
            return None
        return self.graph.token_ids(anchor.parent_id) + anchor.head_ids, anchor.sampled_ids

    @property
    def bridge_tail(self) -> Sequence[Message]:
        """The messages behind the anchor: the tail, and what matched between anchor and tail."""
        anchor = self.graph.anchor(self.path[-1]) if self.path else None
        return self.prompt_messages[anchor.depth if anchor else 0 :]

    @property
    def prompt_messages(self) -> Sequence[Message]:
        """All messages, the matched ones as stored: those may hold what the client left out, such as reasoning."""
        return [*(self.graph.nodes[node_id].message for node_id in self.path), *self.tail]

    def exact_path(self, prompt_ids: Sequence[int]) -> list[int]:
        """The nodes, from the root, whose messages match and whose tokens are the beginning of ``prompt_ids``."""
        return self.graph.exact_path(self.path, self.keys, self.context, pack_ids(prompt_ids, "prompt ids"))
