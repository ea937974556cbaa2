"""Format ``skyrl``: a ``GeneratorOutput`` of SkyRL.

Source: NovaSky-AI/SkyRL, ``skyrl/train/generators/base.py`` (the fields), ``skyrl/train/generators/tito/composer.py``
(what a trace with several branches becomes): one entry a branch, all of one trajectory side by side under its
``trajectory_ids``, ``is_last_step`` on the last of them. A response begins with the first token that is trained in the
row. The rollout's reward is on the last entry and 0.0 on the others; a branch with a reward of its own has that.
``rollout_expert_indices`` are nested lists of ``len(prompt + response) - 1`` tokens, ``[]`` for a row without.

Several branches of one trajectory want ``generator.step_wise_trajectories=true`` in SkyRL, and
``merge_stepwise_output=false``: a row is a whole trajectory, not a step. SkyRL's own composer puts a made-up masked
token in the place of a rollout without samples; here such a rollout has no entry (strict: it is refused).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .composer import PackedComposer, number_of
from .outcome import TraceOutcome
from .row import SampleRow

FIELDS = (
    *("prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons", "rollout_metrics"),
    *("rollout_logprobs", "trajectory_ids", "rollout_expert_indices", "is_last_step"),
)


class SkyRLComposer(PackedComposer):
    """One dict of lists with one entry for each branch of each outcome."""

    needs_reward = True

    def pack(self, outcomes: Sequence[TraceOutcome]) -> dict[str, Any]:
        groups = [(outcome, rows) for outcome in outcomes if (rows := self.rows(outcome))]
        entries = [_entry(outcome, row, is_last=row is rows[-1]) for outcome, rows in groups for row in rows]
        output: dict[str, Any] = {name: [entry[name] for entry in entries] for name in entries[0]} if entries else {}
        experts = output.get("rollout_expert_indices", [])
        has_experts = any(rows is not None for rows in experts)
        return {
            **{name: output.get(name, []) for name in FIELDS},
            "rollout_expert_indices": [[] if rows is None else rows for rows in experts] if has_experts else None,
            "rollout_metrics": _metrics(groups),
        }


def _entry(outcome: TraceOutcome, row: SampleRow, *, is_last: bool) -> dict[str, Any]:
    tokens, loss_mask, logprobs = row.arrays()
    start = row.first_trained
    has_own = any(node.node_id in outcome.branch_rewards for node in row.nodes)
    return {
        "prompt_token_ids": tokens[:start],
        "response_ids": tokens[start:],
        "rewards": number_of(row.reward, "skyrl") if has_own or is_last or row.reward is None else 0.0,
        "loss_masks": loss_mask[start:],
        "stop_reasons": outcome.stop_reason or row.finish_reason,
        "rollout_logprobs": logprobs[start:],
        "trajectory_ids": outcome.trajectory_id,
        "rollout_expert_indices": row.routed_experts,
        "is_last_step": is_last,
    }


def _metrics(groups: Sequence[tuple[TraceOutcome, Sequence[SampleRow]]]) -> dict[str, float]:
    """Under the names that SkyRL's composer gives them; calls are counted once, whatever branches they are in."""
    if not groups:
        return {}
    turns = [len({turn.node_id for row in rows for turn in row.turns}) for _, rows in groups]
    return {
        "generate/avg_num_turns": sum(turns) / len(groups),
        "generate/avg_num_branches": sum(len(rows) for _, rows in groups) / len(groups),
    }
