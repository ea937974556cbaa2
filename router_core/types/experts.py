"""Routed experts of one answer, as one plugin leaves them for another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from router_core.types.state import StateKey


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """``rows``: numpy uint8, uint16 or uint32 ``[seq_len - 1 - start, layers, top_k]``, not to be written to.

    ``rows[0]`` belongs to the token at position ``start`` of prompt and completion. None where there is no row, and
    then ``fault`` says why unless none was due (an abort before the first token).
    """

    rows: Any
    start: int = 0
    fault: str = ""


ROUTED_EXPERTS: StateKey[RoutedExperts] = StateKey("routed experts")
"""On an exchange: the routed experts of its (first) answer, absent where nobody asked for them.

It is there once the last byte has passed whoever collects them. A plugin that reads it at the end of ``answer.chunks``
therefore comes before that one in ``enabled``: its layer lies outside.
"""
