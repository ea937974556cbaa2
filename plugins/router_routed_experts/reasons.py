"""Why routed experts are incomplete. The value of a reason is its name in records and metrics."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    MISSING = "missing"
    """Asked for, but the field is absent or null (the worker runs without the flag, or lost them)."""
    TRUNCATED = "truncated"
    """The answer broke off within the value."""
    NOT_BASE64 = "not_base64"
    BAD_NPY = "bad_npy"
    UNKNOWN_FORM = "unknown_form"
    DTYPE_UNKNOWN = "dtype_unknown"
    DTYPE_CHANGED = "dtype_changed"
    """Other integers than those of the trajectory's rows before: another kind of worker, or another model."""
    LAYOUT_UNKNOWN = "layout_unknown"
    """A value without a shape from a worker whose layers and top_k are not known."""
    WRONG_SIZE = "wrong_size"
    SHAPE = "shape"
    """Not three dimensions, or other layers or top_k than the model has."""
    ROW_COUNT = "row_count"
    ID_RANGE = "id_range"
    ZERO_ROWS = "zero_rows"
    """Rows that no router wrote: all experts of a row of an MoE layer are 0."""
    GAP = "gap"
    """Rows that begin behind the end of those already there."""
    TOKENS_UNKNOWN = "tokens_unknown"
    """The answer does not say how many tokens it has, so the rows cannot be counted."""
    UNREADABLE = "unreadable"
    """The answer without its routed experts is no JSON, or too large to be read."""
    BROKEN = "broken"
    """The answer broke off."""


class RowsError(ValueError):
    """A value that cannot be used, and why."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
