"""Rows of routed experts of two segments, joined as they came. Rows are never made up and never padded."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pybase64

from router_partial_rollout.wire import SegmentError


def join_flat(first: Any, first_rows: int, second: Any, second_rows: int) -> Any:
    """SGLang: base64 of little-endian int32 ``[rows, layers, top_k]``; or the same in ``{"data", "shape"}``."""
    if isinstance(first, dict) and isinstance(second, dict):
        one, two = first.get("shape"), second.get("shape")
        if not isinstance(one, list) or not isinstance(two, list) or one[1:] != two[1:]:
            raise SegmentError(f"routed experts have the shapes {one} and {two}")
        data = join_flat(first.get("data"), first_rows, second.get("data"), second_rows)
        return {**first, "data": data, "shape": [first_rows + second_rows, *one[1:]]}
    if not isinstance(first, str) or not isinstance(second, str):
        raise SegmentError("routed experts come in different forms")
    if not first_rows:
        return second
    head, tail = _decoded(first), _decoded(second)
    if _width(head, first_rows) != _width(tail, second_rows):
        raise SegmentError(
            f"routed experts have {_width(head, first_rows)} and {_width(tail, second_rows)} bytes in a row"
        )
    return pybase64.b64encode(head + tail).decode("ascii")


def join_npy(first: Any, first_rows: int, second: Any, second_rows: int) -> Any:
    """vLLM: base64 of a ``.npy`` of uint8 or uint16 ``[rows, layers, top_k]``; the wider of both types is taken."""
    if not isinstance(first, str) or not isinstance(second, str):
        raise SegmentError("routed experts come in different forms")
    if not first_rows:
        return second
    head, tail = _array(first), _array(second)
    if head.shape[1:] != tail.shape[1:] or (len(head), len(tail)) != (first_rows, second_rows):
        due = f"{first_rows} and {second_rows} rows are due"
        raise SegmentError(f"routed experts have the shapes {head.shape} and {tail.shape}; {due}")
    file = io.BytesIO()
    np.save(file, np.concatenate([head, tail], dtype=np.promote_types(head.dtype, tail.dtype)))
    return pybase64.b64encode(file.getvalue()).decode("ascii")


def _decoded(text: str) -> bytes:
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError as error:
        raise SegmentError(f"routed experts are no base64: {error}") from None


def _width(data: bytes, rows: int) -> int:
    """Bytes in a row."""
    if not rows or len(data) % (4 * rows):
        raise SegmentError(f"{len(data)} bytes of routed experts are not int32 in {rows} rows")
    return len(data) // rows


def _array(text: str) -> Any:
    try:
        return np.load(io.BytesIO(_decoded(text)), allow_pickle=False)
    except ValueError as error:
        raise SegmentError(f"routed experts are no .npy: {error}") from None
