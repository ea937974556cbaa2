"""Format ``neutral``: the rows themselves, under the keys of the design."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .composer import PackedComposer
from .outcome import TraceOutcome

FIELDS = (
    *("session_id", "trajectory_id", "branch_id", "tokens", "loss_mask", "logprobs", "turns", "weight_versions"),
    *("routed_experts", "complete", "reasons", "end_status", "reward"),
)


class NeutralComposer(PackedComposer):
    """A list of rows, in order of outcomes and of branches."""

    def pack(self, outcomes: Sequence[TraceOutcome]) -> list[dict[str, Any]]:
        return [row.to_dict() for outcome in outcomes for row in self.rows(outcome)]
