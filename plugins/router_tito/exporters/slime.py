"""Format ``slime``: dicts that ``Sample.from_dict`` of slime and miles takes.

Source: THUDM/slime and radixark/miles, ``slime/utils/types.py`` (``Sample``, ``Sample.Status``) and miles'
``Sample.validate``: ``loss_mask`` and ``rollout_log_probs`` are as long as the response, ``rollout_routed_experts`` is
int32 ``[len(tokens) - 1, num_layers, top_k]``, ``weight_versions`` has one text for each call. The response begins
behind the first call's prompt.

``response``, the text of it, is not there: tokens are never decoded here. ``metadata`` tells what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .composer import PackedComposer
from .outcome import TraceOutcome
from .row import SampleRow

FIELDS = (
    *("prompt", "tokens", "response_length", "reward", "loss_mask", "weight_versions", "rollout_log_probs"),
    *("rollout_routed_experts", "remove_sample", "status", "metadata", "session_id"),
)
STATUS = {"stop": "completed", "tool_calls": "completed", "length": "truncated", "abort": "aborted"}
"""``Sample.Status`` by the last finish reason, as miles sets it."""
ABORTED = frozenset({"aborted", "abort", "cancelled"})
FAILED = frozenset({"error", "failed", "agent_timeout", "timeout"})
"""Stop reasons of a rollout that say more than the last answer's finish reason."""


class SlimeComposer(PackedComposer):
    """A list of dicts, one for each branch. Experts stay an array."""

    kept_arrays = frozenset({"rollout_routed_experts"})

    def pack(self, outcomes: Sequence[TraceOutcome]) -> list[dict[str, Any]]:
        return [_sample(row) for outcome in outcomes for row in self.rows(outcome)]


def _sample(row: SampleRow) -> dict[str, Any]:
    tokens, loss_mask, logprobs = row.arrays()
    start = row.prompt_length
    return {
        "prompt": _prompt(row),
        "tokens": tokens,
        "response_length": len(tokens) - start,
        "reward": row.reward,
        "loss_mask": loss_mask[start:],
        "weight_versions": row.version_list,
        "rollout_log_probs": logprobs[start:],
        "rollout_routed_experts": None if row.routed_experts is None else row.routed_experts.astype(np.int32),
        "remove_sample": False,
        "status": _status(row),
        "metadata": {
            "trajectory_id": row.trajectory_id,
            "branch_id": row.branch_id,
            "end_status": row.end_status,
            "complete": row.complete,
            "reasons": list(row.reasons),
            "num_turns": len(row.turns),
        },
        "session_id": row.session_id,
    }


def _prompt(row: SampleRow) -> list[dict[str, Any]]:
    """The messages of the first call."""
    first = next(index for index, node in enumerate(row.nodes) if node.is_sampled)
    return [node.message for node in row.nodes[:first]]


def _status(row: SampleRow) -> str:
    if row.end_status in ABORTED:
        return "aborted"
    if row.end_status in FAILED:
        return "failed"
    if row.end_status is not None and row.end_status.startswith(("max_", "context_length")):
        return "truncated"
    return STATUS.get(row.finish_reason, "completed")
