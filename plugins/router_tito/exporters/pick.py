"""Which branches of a trace become samples, and in which of them a token is trained.

``all_leaves``: every branch. ``drop_abandoned``: of answers to an equal request those that were gone on from, else the
last one. ``longest``: of those the one with the most tokens (the first of equals). Auxiliary calls are left out of all
three, unless they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from router_tito.errors import ExportError
from router_tito.trace import Trace
from router_tito.views import BranchView

from .auxiliary import AuxiliaryRules

ALL_LEAVES = "all_leaves"
DROP_ABANDONED = "drop_abandoned"
LONGEST = "longest"
PICKERS = (ALL_LEAVES, DROP_ABANDONED, LONGEST)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A branch that is no sample, and why."""

    branch_id: int
    why: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The branches that become samples, in the order their leaves were committed; of a token that is in several the
    first one trains it."""

    branches: list[BranchView]
    auxiliary: dict[int, str] = field(default_factory=dict)
    """Branch id -> rule, of the auxiliary calls among all branches."""
    left_out: list[LeftOut] = field(default_factory=list)


def select(
    trace: Trace, picker: str = DROP_ABANDONED, rules: AuxiliaryRules | None = None, *, keep_auxiliary: bool = False
) -> Selection:
    """Pick the branches. Raises ExportError for a picker that is not there."""
    if picker not in PICKERS:
        raise ExportError(f"there is no picker {picker!r}: one of {', '.join(PICKERS)}")
    every = trace.branches()
    candidates = every if picker == ALL_LEAVES else trace.branches(drop_abandoned=True)
    auxiliary = (rules or AuxiliaryRules()).tag(trace, candidates)
    kept = [branch for branch in candidates if keep_auxiliary or branch.branch_id not in auxiliary]
    if picker == LONGEST and kept:
        kept = [max(kept, key=lambda branch: branch.nodes[-1].end)]
    why = {branch.branch_id: "not the longest" for branch in candidates}
    if not keep_auxiliary:
        why |= {branch_id: f"auxiliary call: {rule}" for branch_id, rule in auxiliary.items()}
    kept_ids = {branch.branch_id for branch in kept}
    left_out = [
        LeftOut(branch.branch_id, why.get(branch.branch_id, "abandoned"))
        for branch in every
        if branch.branch_id not in kept_ids
    ]
    return Selection(_train_once(kept), auxiliary, left_out)


def _train_once(branches: Sequence[BranchView]) -> list[BranchView]:
    """The same branches, each token trained in the first of them that has it.

    Decided among the branches that are kept: one that is left out must not take its tokens with it.
    """
    trained: set[int] = set()
    result = []
    for branch in branches:
        own = frozenset(node.node_id for node in branch.nodes if node.is_sampled) - trained
        trained |= own
        result.append(replace(branch, trained=own))
    return result
