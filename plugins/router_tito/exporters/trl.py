"""Format ``trl``: what a ``rollout_func`` of TRL's ``GRPOTrainer`` returns.

Source: huggingface/trl, ``trl/trainer/grpo_trainer.py``: ``prompt_ids``, ``completion_ids`` and ``logprobs`` are
required; ``env_mask`` (1: the model's token, 0: the environment's) is what it trains by; every other key is a list
with one value a sample, given to the reward functions (``env_reward`` as in TRL's docs/source/openenv.md).

The trainer takes one sample for each prompt it gave, so that an outcome must be one branch: the picker ``longest``
sees to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from router_tito.errors import ExportError

from .arrays import arrays_of
from .composer import PackedComposer
from .outcome import TraceOutcome
from .row import SampleRow

FIELDS = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "env_reward", "session_id", "branch_id", "complete")


class TrlComposer(PackedComposer):
    """One dict of lists with one entry for each outcome."""

    def pack(self, outcomes: Sequence[TraceOutcome]) -> dict[str, Any]:
        entries = [_entry(self._only_row(outcome)) for outcome in outcomes]
        return {name: [entry[name] for entry in entries] for name in FIELDS}

    def _only_row(self, outcome: TraceOutcome) -> SampleRow:
        rows = self.rows(outcome)
        if len(rows) != 1:
            raise ExportError(
                f"trl takes one sample for each rollout, {outcome.session_id or outcome.trajectory_id!r} has "
                f"{len(rows)}: ask for the picker 'longest'"
            )
        return rows[0]


def _entry(row: SampleRow) -> dict[str, Any]:
    arrays = arrays_of(row)
    return {
        "prompt_ids": arrays.prompt_ids,
        "completion_ids": arrays.response_ids,
        "logprobs": arrays.rollout_log_probs,
        "env_mask": arrays.response_mask,
        "env_reward": row.reward,
        "session_id": row.session_id,
        "branch_id": row.branch_id,
        "complete": row.complete,
    }
