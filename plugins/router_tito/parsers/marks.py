"""Finds markers in text that may end in the middle of one."""

from __future__ import annotations

from collections.abc import Iterable


def find_first(text: str, markers: Iterable[str], start: int = 0) -> tuple[int, str]:
    """Position of the first marker at or behind ``start``, and which; (-1, "") for none."""
    found = [(place, -len(marker), marker) for marker in markers if (place := text.find(marker, start)) >= 0]
    if not found:
        return -1, ""
    place, _, marker = min(found)
    return place, marker


def held_back(text: str, markers: Iterable[str]) -> int:
    """How many characters at the end of ``text`` may be the beginning of a marker."""
    return max((_overlap(text, marker) for marker in markers), default=0)


def _overlap(text: str, marker: str) -> int:
    return next((length for length in range(len(marker) - 1, 0, -1) if text.endswith(marker[:length])), 0)
