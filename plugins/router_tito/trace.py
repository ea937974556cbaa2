"""The trace of one session: what was said, in the exact tokens, ready to be trained on.

turn = trace.prepare_turn(messages, tools)     which stored prefix does this request continue?
...                                            render, call the engine; nothing is locked meanwhile
trace.commit(turn, result)                     atomic, and checked token by token
trace.branches()                               one view per root-to-leaf trajectory
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from .canonical import is_plain_message
from .errors import MessageError, TraceError, TurnRefusedError
from .graph import MessageGraph
from .intake import build_nodes, is_repeat
from .matcher import ContextHashes, Matcher
from .node import ROOT, CommitResult, MessageNode, ModelTurnResult, RenderContext, UntrainableTurn
from .turn import PendingTurn
from .views import BranchView, TransitionView, branch_views, transition_views


class Trace:
    """All recorded of one session. One loop writes it; threads may read it, since what is linked never changes."""

    def __init__(self, *, matcher: Matcher | None = None, expects_routed_experts: bool = False) -> None:
        self.matcher = matcher or Matcher()
        self.graph = MessageGraph()
        self.expects_routed_experts = expects_routed_experts
        """Whether a branch without routed experts is incomplete."""
        self.refused: Counter[str] = Counter()
        """Turns that were not committed, by reason."""
        self.untrainable: list[UntrainableTurn] = []
        self.is_sealed = False
        self.next_turn_id = 1
        self._context_hashes = ContextHashes()

    @property
    def nodes(self) -> Sequence[MessageNode]:
        """All nodes; a node's id is its place."""
        return self.graph.nodes

    @property
    def nbytes(self) -> int:
        """Bytes held: arrays and routed experts exactly, messages by their JSON text, a flat sum per node."""
        return self.graph.nbytes

    def prepare_turn(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> PendingTurn:
        """Find the longest stored prefix of ``messages``; ``MessageError`` if one of them cannot be read.

        Only nodes rendered with the same tools and template arguments match. The new messages are copied.
        """
        self._check_open()
        if not messages:
            raise MessageError("a turn has no messages")
        context = self._context_hashes.get(tools, template_kwargs)
        match = self.graph.match(messages, context, self.matcher.key)
        known = match.line.sent[: match.count] if match.line is not None else []
        stored = [self.graph.nodes[node_id].message for node_id in match.path[len(known) :]]
        tail = tuple(deepcopy(dict(message)) for message in messages[len(match.path) :])
        again = zip(stored, messages[len(known) : len(match.path)], strict=True)
        sent = [mine if mine == theirs and is_plain_message(mine) else deepcopy(dict(theirs)) for mine, theirs in again]
        turn = PendingTurn(
            graph=self.graph,
            turn_id=self.next_turn_id,
            match=match,
            tail=tail,
            sent=[*known, *sent, *tail],
            context=context,
            render_context=self.graph.contexts.get(context)
            or RenderContext(tuple(deepcopy(list(tools or ()))), deepcopy(dict(template_kwargs or {}))),
        )
        self.next_turn_id += 1
        return turn

    def commit(self, turn: PendingTurn, result: ModelTurnResult) -> CommitResult:
        """Store what this turn adds, all of it or nothing.

        ``TurnRefusedError`` (counted) when the answer may not be trained on: aborted, failed, unfinished, empty, ids or
        logprobs missing. ``TokenMismatchError`` when the prompt does not begin with the tokens it was said to reuse.
        The prompt is compared with what is stored, so it lands where its tokens are, wherever the turn was prepared.
        """
        self._check_open()
        if turn.graph is not self.graph:
            raise TraceError("the turn was prepared by another trace")
        try:
            nodes = build_nodes(self.graph, self.matcher, turn, result, turn.request)
        except TurnRefusedError as refused:
            self.refused[refused.reason] += 1
            raise
        repeated = self._find_repeat(nodes)
        if repeated is None:
            self.graph.append(nodes, turn.render_context)
            self.graph.keep_line(nodes[-1], turn.match, turn.sent)
        leaf = repeated or nodes[-1]
        facts = nodes[-1].turn
        if facts is None:
            raise TraceError("an answer without its facts was built")
        if result.routed_experts is not None and not facts.experts_fault:
            self.graph.attach_experts(leaf.node_id, result.routed_experts)
        added = 0 if repeated else leaf.end - facts.reused_tokens
        return CommitResult(turn.turn_id, leaf.node_id, facts.reused_tokens, added, facts.how, repeated is not None)

    def refuse(self, reason: str) -> None:
        """Count a turn that ended without an answer to keep (aborted, failed, the client left)."""
        self.refused[reason] += 1

    def mark_untrainable(self, turn: PendingTurn, reason: str, message: Mapping[str, Any] | None = None) -> None:
        """Remember that this turn was answered (with ``message``) but its tokens are not known.

        The branch it went on from, and every branch that later holds the answer as context, are incomplete.
        """
        self._check_open()
        node_id = turn.path[-1] if turn.path else ROOT
        answer = self.matcher.key({**message, "role": "assistant"}).hash if message else b""
        self.untrainable.append(UntrainableTurn(turn.turn_id, node_id, reason, answer, turn.request))

    @property
    def lost(self) -> list[UntrainableTurn]:
        """The untrainable turns that were not made good by an answer to an equal request."""
        return [turn for turn in self.untrainable if turn.request not in self.graph.answers]

    def mark_delivered(self, node_id: int) -> None:
        """The client got this answer whole."""
        self._sampled(node_id).is_delivered = True

    def abandon(self, node_id: int) -> None:
        """Nobody will go on from this answer, as far as is known; a child committed later speaks louder."""
        self._sampled(node_id).is_abandoned = True

    def seal(self) -> None:
        """End the session: nothing is prepared or committed from now on."""
        self.is_sealed = True

    def answers(self, turn: PendingTurn) -> list[MessageNode]:
        """Earlier answers to an equal request, oldest first: what a retry may be given while it has no children."""
        return [self.graph.nodes[node_id] for node_id in self.graph.answers.get(turn.request, ())]

    def branches(self, *, drop_abandoned: bool = False) -> list[BranchView]:
        """One view per leaf, in the order the leaves were committed; a sampled token is trained in the first of them.

        ``drop_abandoned``: of answers to an equal request those that were gone on from are kept, else the last one.
        """
        return branch_views(self, drop_abandoned)

    def transitions(self, branch: BranchView) -> list[TransitionView]:
        """The calls of a branch, one per sampled node, in order."""
        return transition_views(branch)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values, with a ``version``; shares nothing with the trace."""
        from .serial import dump_trace  # it imports this module

        return dump_trace(self)

    @classmethod
    def from_dict(cls, dump: Mapping[str, Any], *, matcher: Matcher | None = None) -> Trace:
        """Inverse of ``to_dict``; ``TraceError`` if the dump is damaged or was made with other matchers."""
        from .serial import load_trace  # it imports this module

        return load_trace(dump, matcher or Matcher())

    def _check_open(self) -> None:
        if self.is_sealed:
            raise TraceError("the trace is sealed")

    def _sampled(self, node_id: int) -> MessageNode:
        if not 0 <= node_id < len(self.nodes) or not self.nodes[node_id].is_sampled:
            raise TraceError(f"node {node_id} is no sampled node of this trace")
        return self.nodes[node_id]

    def _find_repeat(self, nodes: Sequence[MessageNode]) -> MessageNode | None:
        """The stored node that the one node to be added would only repeat."""
        new = nodes[0]
        if len(nodes) > 1:
            return None
        for twin_id in self.graph.twins(new.parent_id, new.key.hash, new.context):
            if is_repeat(self.graph.nodes[twin_id], new):
                return self.graph.nodes[twin_id]
        return None
