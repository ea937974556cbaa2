"""The neutral row: one trajectory with all that is known of each of its tokens, from which every format is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from router_tito.experts import Rows
from router_tito.node import MessageNode
from router_tito.packed import Ids, Logprobs
from router_tito.views import BranchView, TransitionView

from .outcome import Reward, TraceOutcome


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """A row's tokens from ``start`` to before ``end`` were sampled with the weights ``version`` (None: unknown)."""

    version: str | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One call of a row. Its prompt is the row's first ``start`` tokens, its answer those from there to ``end``."""

    turn_id: int
    node_id: int
    start: int
    end: int
    is_trained: bool
    """Whether its tokens have mask 1 in this row; else they do in an earlier one."""
    finish_reason: str
    model: str
    weight_version: str | None
    sampling_params: dict[str, Any]
    cached_tokens: int | None
    how: str
    """``bridge``, ``render`` or ``reuse``: how the prompt came about."""
    is_delivered: bool
    auxiliary: str | None
    """The rule by which this is an auxiliary call."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleRow:
    """One root-to-leaf trajectory. ``tokens``, ``loss_mask`` and ``logprobs`` are equally long.

    Logprobs are in nats, and 0.0 where the mask is 0. ``weight_versions`` covers each sampled token once, in order.
    ``routed_experts``: ``[len(tokens) - 1, num_layers, top_k]``, None unless every row is there. Nothing is padded.
    """

    session_id: str
    trajectory_id: Any
    branch_id: int
    tokens: Ids
    loss_mask: bytes
    logprobs: Logprobs
    turns: tuple[TurnRecord, ...]
    weight_versions: tuple[VersionSpan, ...]
    routed_experts: Rows | None
    complete: bool
    reasons: tuple[str, ...]
    """What is missing; empty when it is complete."""
    end_status: str | None
    reward: Reward | None
    nodes: tuple[MessageNode, ...]
    """The messages behind the tokens; not part of what is written."""

    @property
    def prompt_length(self) -> int:
        """Tokens before the first sampled one."""
        return self.turns[0].start

    @property
    def first_trained(self) -> int:
        """Position of the first token with mask 1; every row has one."""
        return self.loss_mask.index(1)

    @property
    def finish_reason(self) -> str:
        """Of the last turn."""
        return self.turns[-1].finish_reason

    @property
    def version_list(self) -> list[str]:
        """The known weight versions, one for each turn or part of one, in order."""
        return [span.version for span in self.weight_versions if span.version is not None]

    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.float64]]:
        """Tokens, mask and logprobs as read-only numpy arrays over the same memory."""
        return (
            np.frombuffer(self.tokens, np.int32),
            np.frombuffer(self.loss_mask, np.uint8),
            np.frombuffer(self.logprobs, np.float64),
        )

    def to_dict(self) -> dict[str, Any]:
        """The row as it is written; values of which there is one a token are numpy arrays."""
        tokens, loss_mask, logprobs = self.arrays()
        return {
            "session_id": self.session_id,
            "trajectory_id": self.trajectory_id,
            "branch_id": self.branch_id,
            "tokens": tokens,
            "loss_mask": loss_mask,
            "logprobs": logprobs,
            "turns": [_fields_of(turn) for turn in self.turns],
            "weight_versions": [_fields_of(span) for span in self.weight_versions],
            "routed_experts": self.routed_experts,
            "complete": self.complete,
            "reasons": list(self.reasons),
            "end_status": self.end_status,
            "reward": self.reward,
        }


def sample_row(outcome: TraceOutcome, branch: BranchView, auxiliary: str | None = None) -> SampleRow:
    """The row of one branch; its mask is that of ``branch.trained``."""
    transitions = branch.transitions
    spans = [span for transition in transitions for span in _version_spans(transition)]
    reasons = (*branch.reasons, *_version_reasons(spans))
    return SampleRow(
        session_id=outcome.session_id,
        trajectory_id=outcome.trajectory_id,
        branch_id=branch.branch_id,
        tokens=branch.token_ids,
        loss_mask=branch.loss_mask,
        logprobs=branch.logprobs,
        turns=tuple(_turn_record(branch, transition, auxiliary) for transition in transitions),
        weight_versions=tuple(spans),
        routed_experts=branch.routed_experts,
        complete=not reasons,
        reasons=reasons,
        end_status=outcome.stop_reason,
        reward=outcome.reward_of(branch.node_ids),
        nodes=tuple(branch.nodes),
    )


def _fields_of(record: TurnRecord | VersionSpan) -> dict[str, Any]:
    """As ``asdict``, which copies whatever is in there, and takes ten times as long."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _turn_record(branch: BranchView, transition: TransitionView, auxiliary: str | None) -> TurnRecord:
    node, facts = transition.node, transition.facts
    return TurnRecord(
        turn_id=facts.turn_id,
        node_id=node.node_id,
        start=node.start + node.sampled_start,
        end=node.end,
        is_trained=node.node_id in branch.trained,
        finish_reason=facts.finish_reason,
        model=facts.model,
        weight_version=facts.weight_version,
        sampling_params=dict(facts.sampling_params),
        cached_tokens=facts.cached_tokens,
        how=facts.how,
        is_delivered=node.is_delivered,
        auxiliary=auxiliary,
    )


def _version_spans(transition: TransitionView) -> list[VersionSpan]:
    """The versions of one answer, by position in the row; where spans were told, what they leave out is unknown."""
    node, facts = transition.node, transition.facts
    first, end = node.start + node.sampled_start, node.end
    if not facts.weight_versions:
        return [VersionSpan(facts.weight_version, first, end)]
    spans = []
    at = first
    for version, start, stop in sorted(facts.weight_versions, key=lambda span: span[1]):
        start, stop = max(first + start, at), min(first + stop, end)
        if at < start:
            spans.append(VersionSpan(None, at, start))
        if start < stop:
            spans.append(VersionSpan(version, start, stop))
            at = stop
    if at < end:
        spans.append(VersionSpan(None, at, end))
    return spans


def _version_reasons(spans: Sequence[VersionSpan]) -> list[str]:
    """Nothing is missing where no version was ever told; where some were, all must be."""
    if all(span.version is None for span in spans):
        return []
    return [
        f"the weight version of tokens {span.start} to {span.end - 1} is not known"
        for span in spans
        if span.version is None
    ]
