"""Routed experts of a path: opaque rows kept per node, put together only when asked for.

Row ``r`` says which experts token ``r`` was routed to, so a sequence of n tokens has n - 1 rows: the last token was
never fed back. The row of a turn's last token comes with the next turn. The first writer of a row wins, because a
later prefill of the same tokens may have routed them otherwise than the decoding that sampled them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Rows: TypeAlias = NDArray[Any]
"""uint8, uint16 or int32 ``[rows, num_layers, top_k]``."""

DTYPES = (np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.int32))


@dataclass(frozen=True, slots=True)
class RoutedRows:
    """Rows an engine returned for one turn; ``rows[0]`` belongs to the token at position ``start``."""

    rows: Rows
    start: int = 0

    def fault(self, sequence_length: int, shape: tuple[int, int] | None) -> str:
        """Why these rows cannot be those of ``sequence_length`` tokens in a trace of ``shape``; "" if they can."""
        if self.rows.ndim != 3 or self.rows.dtype not in DTYPES:
            return f"routed experts are {self.rows.dtype} of {self.rows.ndim} dimensions, not uint8, uint16, int32 of 3"
        expected = sequence_length - 1 - self.start
        if self.start < 0 or len(self.rows) != expected:
            return f"{len(self.rows)} rows of routed experts from position {self.start}, expected {expected}"
        if shape not in (None, self.rows.shape[1:]):
            return f"routed experts of shape {self.rows.shape[1:]} in a trace of shape {shape}"
        return ""


@dataclass(slots=True)
class NodeRows:
    """Rows of one node's tokens as (offset within the node, rows), in order, without overlap."""

    chunks: list[tuple[int, Rows]] = field(default_factory=list)

    def gaps(self, count: int) -> Iterator[tuple[int, int]]:
        """Ranges of [0, count) that have no row yet."""
        at = 0
        for offset, rows in self.chunks:
            if at < min(offset, count):
                yield at, min(offset, count)
            at = offset + len(rows)
        if at < count:
            yield at, count

    def fill(self, offset: int, rows: Rows, count: int) -> int:
        """Copy rows a node of ``count`` tokens lacks; ``rows[0]`` is for ``offset``. Gives the bytes added."""
        new: list[tuple[int, Rows]] = []
        for start, end in self.gaps(count):
            start, end = max(start, offset), min(end, offset + len(rows))
            if start < end:
                # A copy, so that the whole answer's buffer is not kept alive for a few rows of it.
                new.append((start, rows[start - offset : end - offset].copy()))
        if new:  # replaced, never changed: a thread may be reading it
            self.chunks = sorted([*self.chunks, *new], key=lambda chunk: chunk[0])
        return sum(chunk.nbytes for _, chunk in new)


def missing_rows(spans: Sequence[tuple[int, int, NodeRows]]) -> str:
    """Why the rows of a path are not whole, "" if they are; ``spans`` are (start, end, rows) of its nodes in order."""
    total = spans[-1][1] if spans else 0
    gaps: list[tuple[int, int]] = []
    for start, end, rows in spans:
        for gap_start, gap_end in rows.gaps(min(end, total - 1) - start):
            if gaps and gaps[-1][1] == start + gap_start:
                gaps[-1] = (gaps[-1][0], start + gap_end)
            else:
                gaps.append((start + gap_start, start + gap_end))
    if not gaps:
        return ""
    more = f", and of {len(gaps) - 1} further ranges" if len(gaps) > 1 else ""
    return f"routed experts of tokens {gaps[0][0]} to {gaps[0][1] - 1} are missing{more}"


def join_rows(spans: Sequence[tuple[int, int, NodeRows]]) -> Rows:
    """``[total - 1, num_layers, top_k]`` of a path without gaps, in the widest integer type among its parts.

    A row of the path's very last token, known when another branch went on from here, is left out.
    """
    total = spans[-1][1] - 1
    chunks = [
        chunk[: total - start - offset]
        for start, _, rows in spans
        for offset, chunk in (rows.chunks)
        if start + offset < total
    ]
    return np.concatenate(chunks)
