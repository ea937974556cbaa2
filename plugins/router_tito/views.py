"""Read-only views of a trace: branches (what a trainer takes as a row) and transitions (single calls)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .experts import Rows, join_rows, missing_rows
from .node import Message, MessageNode, TurnFacts
from .packed import Ids, Logprobs

if TYPE_CHECKING:
    from .trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class TransitionView:
    """One call: the prompt that was sent and what was sampled on it. ``node_ids`` ends with the answer's node."""

    trace: Trace
    node_ids: tuple[int, ...]

    @property
    def node(self) -> MessageNode:
        """The answer's node."""
        return self.trace.nodes[self.node_ids[-1]]

    @property
    def facts(self) -> TurnFacts:
        """Model, sampling parameters, finish reason, weight version and the like."""
        facts = self.node.turn
        if facts is None:  # a transition is only made of sampled nodes
            raise TypeError(f"node {self.node_ids[-1]} was not sampled")
        return facts

    @property
    def messages(self) -> list[Message]:
        """The messages of the prompt."""
        return [self.trace.nodes[node_id].message for node_id in self.node_ids[:-1]]

    @property
    def message(self) -> Message:
        """The answer."""
        return self.node.message

    @property
    def tools_hash(self) -> str:
        """Key of the tools and template arguments, in hex; ``tools`` gives the tools."""
        return self.node.context.hex()

    @property
    def tools(self) -> Sequence[Any]:
        """The tools the prompt was rendered with."""
        return self.trace.graph.contexts[self.node.context].tools

    @property
    def prompt_ids(self) -> Ids:
        """The ids the engine was given."""
        return self.trace.graph.token_ids(self.node.parent_id) + self.node.head_ids

    @property
    def completion_ids(self) -> Ids:
        """The ids it sampled."""
        return self.node.sampled_ids

    @property
    def logprobs(self) -> Logprobs:
        """Nats, one per completion id."""
        return self.node.logprobs[:]

    @property
    def finish_reason(self) -> str:
        """As the engine said it."""
        return self.facts.finish_reason

    @property
    def model(self) -> str:
        """As the engine said it."""
        return self.facts.model

    @property
    def sampling_params(self) -> Mapping[str, Any]:
        """What was sampled with."""
        return self.facts.sampling_params

    def is_exact_extension_of(self, other: TransitionView) -> bool:
        """Whether this prompt begins with all of the other call's ids, prompt and completion."""
        before = other.prompt_ids + other.completion_ids
        return self.prompt_ids[: len(before)] == before


@dataclass(frozen=True, slots=True, eq=False)
class BranchView:
    """One trajectory, from a root to a sampled leaf.

    ``token_ids``, ``loss_mask`` and ``logprobs`` are equally long; logprobs are 0.0 where the mask is 0.
    ``trained`` are the nodes whose sampled tokens count here: those that no earlier branch of the same listing has.
    """

    trace: Trace
    node_ids: tuple[int, ...]
    trained: frozenset[int]
    is_abandoned: bool

    @property
    def branch_id(self) -> int:
        """The leaf's node id."""
        return self.node_ids[-1]

    @property
    def nodes(self) -> list[MessageNode]:
        """From the root to the leaf."""
        return [self.trace.nodes[node_id] for node_id in self.node_ids]

    @property
    def messages(self) -> list[Message]:
        """From the first to the answer the branch ends with."""
        return [node.message for node in self.nodes]

    @property
    def transitions(self) -> list[TransitionView]:
        """The calls, in order."""
        return transition_views(self)

    @property
    def token_ids(self) -> Ids:
        """The whole trajectory."""
        return self.trace.graph.token_ids(self.branch_id)

    @property
    def loss_mask(self) -> bytes:
        """1 where the token was sampled and is trained in this row."""
        return self._mask(self.trained)

    @property
    def sampled_mask(self) -> bytes:
        """1 where the token was sampled, here or in an earlier row."""
        return self._mask(frozenset(node.node_id for node in self.nodes if node.is_sampled))

    @property
    def logprobs(self) -> Logprobs:
        """Nats; 0.0 where ``loss_mask`` is 0."""
        logprobs: Logprobs = array("d")
        for node in self.nodes:
            known = node.logprobs if node.node_id in self.trained else array("d")
            logprobs += array("d", bytes(8 * (len(node.token_ids) - len(known))))
            logprobs += known
        return logprobs

    @property
    def weight_versions(self) -> list[str | None]:
        """Of each transition."""
        return [transition.facts.weight_version for transition in self.transitions]

    @property
    def routed_experts(self) -> Rows | None:
        """``[len(token_ids) - 1, num_layers, top_k]``, None unless every row is there."""
        spans = [(node.start, node.end, node.experts) for node in self.nodes]
        return None if missing_rows(spans) or spans[-1][1] < 2 else join_rows(spans)

    @property
    def reasons(self) -> list[str]:
        """What is missing from this branch; empty when it is complete."""
        return [*self._untrainable_reasons(), *self._expert_reasons()]

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.reasons

    def _mask(self, sampled: frozenset[int]) -> bytes:
        return b"".join(
            bytes(node.sampled_start) + b"\1" * (len(node.token_ids) - node.sampled_start)
            if node.node_id in sampled
            else bytes(len(node.token_ids))
            for node in self.nodes
        )

    def _untrainable_reasons(self) -> list[str]:
        copied = {node.key.hash for node in self.nodes if not node.is_sampled}
        graph = self.trace.graph
        reasons = []
        for turn in self.trace.untrainable:
            anchor = graph.anchor(turn.node_id)
            if (anchor and anchor.node_id == self.branch_id) or turn.message_hash in copied:
                reasons.append(f"turn {turn.turn_id} was not captured: {turn.reason}")
        return reasons

    def _expert_reasons(self) -> list[str]:
        faults = [t.facts.experts_fault for t in self.transitions if t.facts.experts_fault]
        has_any = any(node.experts.chunks for node in self.nodes)
        if not (self.trace.expects_routed_experts or has_any or faults):
            return []
        missing = missing_rows([(node.start, node.end, node.experts) for node in self.nodes])
        return [*faults, missing] if missing else []


def transition_views(branch: BranchView) -> list[TransitionView]:
    """The calls of a branch, in order."""
    return [TransitionView(branch.trace, branch.node_ids[: node.depth]) for node in branch.nodes if node.is_sampled]


def superseded(nodes: Sequence[MessageNode], groups: Iterable[Sequence[int]]) -> set[int]:
    """Answers nobody went on from: abandoned, or passed over for another answer to an equal request (``groups``)."""
    passed_over: set[int] = set()
    for group in groups:
        extended = [node_id for node_id in group if nodes[node_id].children]
        open_ends = [node_id for node_id in group if not nodes[node_id].is_abandoned]
        kept = extended or open_ends[-1:]
        passed_over.update(set(group) - set(kept))
    return passed_over


def pick_leaves(nodes: Sequence[MessageNode], dropped: set[int]) -> list[int]:
    """Sampled nodes outside ``dropped`` without one of their kind behind them, in the order they were committed."""
    leaves: list[int] = []
    is_inner: set[int] = set()
    for node in reversed(nodes):
        is_kept = node.is_sampled and node.node_id not in dropped
        if is_kept and node.node_id not in is_inner:
            leaves.append(node.node_id)
        if is_kept or node.node_id in is_inner:
            is_inner.add(node.parent_id)
    leaves.reverse()
    return leaves


def branch_views(trace: Trace, drop_abandoned: bool) -> list[BranchView]:
    """See ``Trace.branches``."""
    graph = trace.graph
    abandoned = superseded(graph.nodes, list(graph.answers.values()))  # a copy: the loop may add to it meanwhile
    trained: set[int] = set()
    branches: list[BranchView] = []
    for leaf in pick_leaves(graph.nodes, abandoned if drop_abandoned else set()):
        path = graph.path(leaf)
        own = frozenset(node_id for node_id in path if graph.nodes[node_id].is_sampled) - trained
        trained |= own
        branches.append(BranchView(trace, tuple(path), own, leaf in abandoned))
    return branches
