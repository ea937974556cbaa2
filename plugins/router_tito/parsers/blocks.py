"""Reads a block between two markers."""

from __future__ import annotations

from collections.abc import Callable

from .interface import ToolCall


def read_block(
    text: str,
    start: str,
    end: str,
    read: Callable[[str], list[ToolCall] | bool | None],
    *,
    is_last: bool,
) -> tuple[list[ToolCall], int] | bool | None:
    """As `ToolForm.read`. ``read`` gets what stands between; its None says that this end is not yet the end."""
    place = text.find(end, len(start))
    while place >= 0:
        calls = read(text[len(start) : place])
        if isinstance(calls, list):
            return calls, place + len(end)
        if calls is not None:
            return False
        place = text.find(end, place + len(end))
    return False if is_last else None
