"""Format ``psrl``: what PSRL's ``build_training_data`` makes of one trajectory.

Source: psrl-project/psrl, ``psrl/utils/tito/training_data.py``: a dict of ``prompt_ids``, ``response_ids``,
``response_mask``, ``logprobs``, ``routed_experts``, ``num_turns``; responses begin behind the first call's prompt,
``num_turns`` counts calls. Theirs fills missing experts with zeros; here they are None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .arrays import arrays_of
from .composer import PackedComposer
from .outcome import TraceOutcome
from .row import SampleRow

FIELDS = ("prompt_ids", "response_ids", "response_mask", "logprobs", "routed_experts", "num_turns")


class PsrlComposer(PackedComposer):
    """A list of dicts, one for each trajectory. Experts stay an array, as theirs."""

    kept_arrays = frozenset({"routed_experts"})

    def pack(self, outcomes: Sequence[TraceOutcome]) -> list[dict[str, Any]]:
        return [_fields(row) for outcome in outcomes for row in self.rows(outcome)]


def _fields(row: SampleRow) -> dict[str, Any]:
    arrays = arrays_of(row)
    return {
        "prompt_ids": arrays.prompt_ids,
        "response_ids": arrays.response_ids,
        "response_mask": arrays.response_mask,
        "logprobs": arrays.rollout_log_probs,
        "routed_experts": arrays.routed_experts,
        "num_turns": arrays.num_turns,
    }
