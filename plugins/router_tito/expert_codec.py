"""Routed experts as chat answers carry them, decoded to rows; or as another plugin collected them.

SGLang: base64 of little-endian int32 without a header. vLLM: base64 of a ``.npy`` of [rows, layers, experts a token].
"""

from __future__ import annotations

import io

import numpy as np
import pybase64

from router_core import RoutedExperts

from .experts import DTYPES, RoutedRows

NPY_MAGIC = b"\x93NUMPY"


def decode_experts(
    text: str | None, sequence_length: int, shape: tuple[int, int] | None
) -> tuple[RoutedRows | None, str]:
    """The rows, or None and why there are none. ``shape`` is for what comes without one."""
    if text is None:
        return None, "the worker returned no routed experts"
    try:
        raw = pybase64.b64decode(text, validate=True)
        rows = np.load(io.BytesIO(raw), allow_pickle=False) if raw.startswith(NPY_MAGIC) else _raw_rows(raw, shape)
    except ValueError as error:
        return None, f"routed experts cannot be read: {error}"
    routed = RoutedRows(_narrow(rows))
    return routed, routed.fault(sequence_length, None)


def collected_experts(collected: RoutedExperts) -> tuple[RoutedRows | None, str]:
    """What another plugin found in the answer, as rows, or why there are none."""
    if collected.rows is None:
        return None, collected.fault
    return RoutedRows(_narrow(collected.rows), collected.start), collected.fault


def _raw_rows(raw: bytes, shape: tuple[int, int] | None) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    if shape is None:
        raise ValueError("they come without a shape; set plugins.tito.experts_shape to (layers, experts per token)")
    return np.frombuffer(raw, dtype="<i4").reshape(-1, *shape)


def _narrow(rows: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """In the smallest of the types that are kept, which holds them as they are."""
    if not rows.size or not np.issubdtype(rows.dtype, np.integer) or int(rows.min()) < 0:
        return rows
    highest = int(rows.max())
    kind = next((dtype for dtype in DTYPES if highest <= np.iinfo(dtype).max), rows.dtype)
    return np.ascontiguousarray(rows, dtype=kind)
