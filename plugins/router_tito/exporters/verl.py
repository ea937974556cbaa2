"""Format ``verl``: the fields of verl's ``AgentLoopOutput``.

Source: verl-project/verl, ``verl/experimental/agent_loop/agent_loop.py`` (``AgentLoopOutput``, ``AgentLoopMetrics``):
a response begins behind the first prompt, ``num_turns`` counts the messages of user, assistant and tools,
``routed_experts`` may have fewer rows than tokens (verl aligns them), a reward's further values go into
``extra_fields["reward_extra_info"]``. An agent loop may return a list of outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .arrays import arrays_of
from .auxiliary import SYSTEM_ROLES
from .composer import PackedComposer, number_of
from .outcome import TraceOutcome
from .row import SampleRow

FIELDS = (
    *("prompt_ids", "response_ids", "response_mask", "response_logprobs", "routed_experts", "multi_modal_data"),
    *("reward_score", "num_turns", "metrics", "extra_fields"),
)


class VerlComposer(PackedComposer):
    """A list of dicts, one for each branch: ``AgentLoopOutput(**fields)``. Experts stay an array."""

    kept_arrays = frozenset({"routed_experts"})

    def pack(self, outcomes: Sequence[TraceOutcome]) -> list[dict[str, Any]]:
        return [_output(outcome, row) for outcome in outcomes for row in self.rows(outcome)]


def _output(outcome: TraceOutcome, row: SampleRow) -> dict[str, Any]:
    arrays = arrays_of(row)
    reward_info = dict(row.reward) if isinstance(row.reward, Mapping) else {}
    return {
        "prompt_ids": arrays.prompt_ids,
        "response_ids": arrays.response_ids,
        "response_mask": arrays.response_mask,
        "response_logprobs": arrays.rollout_log_probs,
        "routed_experts": arrays.routed_experts,
        "multi_modal_data": None,
        "reward_score": number_of(row.reward, "verl"),
        "num_turns": sum(node.message.get("role") not in SYSTEM_ROLES for node in row.nodes),
        "metrics": {"generate_sequences": outcome.generation_time or 0.0, "tool_calls": 0.0},
        "extra_fields": {
            "session_id": row.session_id,
            "trajectory_id": row.trajectory_id,
            "branch_id": row.branch_id,
            "weight_versions": row.version_list,
            "complete": row.complete,
            "reasons": list(row.reasons),
            "end_status": row.end_status,
            "reward_extra_info": reward_info,
        },
    }
