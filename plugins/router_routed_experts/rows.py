"""Rows of routed experts: checked against the tokens they belong to, joined over turns, never filled up.

Row i tells which experts the forward pass of token i took, so a sequence of ``seq_len`` tokens has ``seq_len - 1``
rows: the last sampled token was never an input. ``experts: uint8 | uint16 | uint32 [rows, layers, top_k]``.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from router_routed_experts.codecs import Decoded, Ids
from router_routed_experts.reasons import Reason, RowsError


@dataclass(frozen=True, slots=True)
class Layout:
    """What is known of the model. ``dense_layers`` have no experts and are written as 0; None: not known which."""

    layers: int
    top_k: int
    num_experts: int | None = None
    dense_layers: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows ``start`` and on of one trajectory, not to be written to."""

    start: int
    experts: Ids
    dtype: str | None = None
    """Of the integers that came; None: not known."""

    @property
    def stop(self) -> int:
        return self.start + len(self.experts)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Rows to keep, or why there are none. An abort before the first token is complete and has no rows."""

    block: RowBlock | None = None
    reason: Reason | None = None
    detail: str = ""

    @property
    def is_complete(self) -> bool:
        return self.reason is None


NONE_CAME = Verdict(reason=Reason.MISSING, detail="routed experts were asked for and none came")


def judge(
    decoded: Decoded | RowsError | None,
    *,
    prompt_tokens: int,
    output_tokens: int,
    start: int = 0,
    layout: Layout | None = None,
    is_aborted: bool = False,
) -> Verdict:
    """Whether an answer's routed experts are whole.

    ``decoded`` is None when the field was absent or null. ``start`` is the first row that was asked for; a start the
    value states itself wins, and a full answer to a request for fewer rows is taken as full.
    """
    if decoded is None and is_aborted and output_tokens == 0:
        return Verdict()
    if decoded is None:
        return NONE_CAME
    try:
        if isinstance(decoded, RowsError):
            raise decoded
        experts = shaped(decoded, layout)
        first = _first_row(decoded, experts, prompt_tokens + output_tokens - 1, start)
        check_ids(experts, layout)
    except RowsError as fault:
        return Verdict(reason=fault.reason, detail=fault.detail)
    experts.flags.writeable = False
    return Verdict(RowBlock(first, experts, decoded.dtype))


def shaped(decoded: Decoded, layout: Layout | None) -> Ids:
    """``[rows, layers, top_k]`` by the stated shape, else by the layout; raises ``RowsError`` when they disagree."""
    shape = decoded.shape
    if shape is None:
        if layout is None:
            raise RowsError(
                Reason.LAYOUT_UNKNOWN, f"{decoded.ids.size} ids without a shape, layers and top_k not known"
            )
        width = layout.layers * layout.top_k
        if decoded.ids.size % width:
            detail = f"{decoded.ids.size} ids are no whole rows of {layout.layers} layers x {layout.top_k} experts"
            raise RowsError(Reason.WRONG_SIZE, detail)
        return decoded.ids.reshape(-1, layout.layers, layout.top_k)
    if len(shape) != 3 or (layout is not None and shape[1:] != (layout.layers, layout.top_k)):
        wanted = "[rows, layers, top_k]" if layout is None else f"[rows, {layout.layers}, {layout.top_k}]"
        raise RowsError(Reason.SHAPE, f"the shape is {list(shape)}, not {wanted}")
    return decoded.ids.reshape(shape)


def check_ids(experts: Ids, layout: Layout | None) -> None:
    """Raise ``RowsError`` for an id that the model does not have and for rows that no router wrote."""
    if layout is not None and layout.num_experts is not None and experts.size:
        largest = int(experts.max())
        if largest >= layout.num_experts:
            raise RowsError(Reason.ID_RANGE, f"expert {largest} of a model with {layout.num_experts}")
    zero = zero_cells(experts)
    if zero is None:
        return
    dense = np.asarray(zero.all(axis=0))
    if layout is not None and layout.dense_layers is not None:
        dense = np.isin(np.arange(experts.shape[1]), list(layout.dense_layers))
    elif dense.all():
        raise RowsError(Reason.ZERO_ROWS, f"all {len(experts)} rows are 0")
    wrong = zero[:, ~dense].any(axis=1)
    if wrong.any():
        detail = f"{int(wrong.sum())} rows are 0 in a layer that has experts, first row {int(wrong.argmax())}"
        raise RowsError(Reason.ZERO_ROWS, detail)


def zero_cells(experts: Ids) -> NDArray[np.bool_] | None:
    """Where all experts of a row and layer are 0, ``[rows, layers]``; None when nowhere, or when that can be right.

    A router's experts differ, so with two or more of them they cannot all be 0; a single one can.
    """
    if experts.shape[2] < 2 or not experts.size:
        return None
    width = experts.shape[2] * experts.itemsize
    if width in (2, 4, 8) and experts.flags.c_contiguous:  # one comparison of a whole cell is ten times as fast
        zero = experts.view(f"u{width}")[:, :, 0] == 0
    else:
        zero = ~experts.any(axis=2)
    return zero if zero.any() else None


def _first_row(decoded: Decoded, experts: Ids, rows_of_sequence: int, asked: int) -> int:
    first = asked if decoded.start is None else decoded.start
    if decoded.start is None and len(experts) == rows_of_sequence:
        return 0
    if first < 0 or len(experts) != rows_of_sequence - first:
        wanted = f"{rows_of_sequence - first} rows for {rows_of_sequence + 1} tokens from row {first}"
        raise RowsError(Reason.ROW_COUNT, f"{len(experts)} rows came, not {wanted}")
    return first


@dataclass(frozen=True, slots=True)
class RowTable:
    """All rows of one trajectory so far, from row ``start`` on without a gap. Immutable: branches share the blocks."""

    blocks: tuple[Ids, ...] = ()
    start: int = 0
    dtype: str | None = None
    """Of the integers that came for them; None: not known."""

    @property
    def row_count(self) -> int:
        return sum(len(block) for block in self.blocks)

    @property
    def stop(self) -> int:
        """The row behind the last one."""
        return self.start + self.row_count

    def extended(self, block: RowBlock) -> RowTable:
        """With the rows of ``block`` that are not there yet: who wrote a row first stays. Raises ``RowsError`` for a
        gap."""
        missing = block.start - self.stop
        if missing > 0:
            raise RowsError(Reason.GAP, f"rows {self.stop} to {block.start - 1} never came")
        if self.blocks and self.blocks[0].shape[1:] != block.experts.shape[1:]:
            raise RowsError(
                Reason.SHAPE,
                f"{block.experts.shape[1:]} layers and experts behind others of {self.blocks[0].shape[1:]}",
            )
        if self.blocks and None not in (self.dtype, block.dtype) and self.dtype != block.dtype:
            raise RowsError(Reason.DTYPE_CHANGED, f"{block.dtype} behind rows that came as {self.dtype}")
        new = block.experts
        if missing:  # a copy: a view would keep the whole of each turn's full answer
            new = new[-missing:].copy()
            new.flags.writeable = False
        return RowTable((*self.blocks, new), self.start, self.dtype or block.dtype) if len(new) else self

    def first(self, stop: int) -> RowTable:
        """The rows before row ``stop``, for a branch that leaves the trajectory there."""
        blocks = []
        row_count = stop - self.start
        for block in self.blocks:
            if row_count <= 0:
                break
            blocks.append(block[:row_count])
            row_count -= len(block)
        return RowTable(tuple(blocks), self.start, self.dtype)

    @property
    def npy_size(self) -> int:
        """Bytes of the ``.npy`` file."""
        values = sum(block.size for block in self.blocks) * self._dtype.itemsize
        return len(self._npy_header()) + values

    def npy_pieces(self) -> Iterator[bytes | memoryview]:
        """A ``.npy`` file in pieces: the header, then the rows in the smallest type that holds all of them."""
        yield self._npy_header()
        for block in self.blocks:
            yield block.astype(self._dtype, copy=False).reshape(-1).view(np.uint8).data

    def to_npy(self) -> bytes:
        return b"".join(self.npy_pieces())

    @property
    def _dtype(self) -> np.dtype[Any]:
        widest = max(
            (block.dtype for block in self.blocks), key=lambda dtype: dtype.itemsize, default=np.dtype(np.uint8)
        )
        return widest.newbyteorder("<")

    def _npy_header(self) -> bytes:
        width = self.blocks[0].shape[1:] if self.blocks else (0, 0)
        described = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.row_count, *width)}
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, described)
        return header.getvalue()


NO_ROWS = RowTable()
