"""Takes control tokens out of text that is meant to be read."""

from __future__ import annotations

import re
from collections.abc import Iterable


class SpecialTextFilter:
    """Drops the given texts from a growing text, however it is cut."""

    def __init__(self, texts: Iterable[str]) -> None:
        known = sorted({text for text in texts if text}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, known))) if known else None
        self._beginnings = frozenset(text[:length] for text in known for length in range(1, len(text)))
        self._longest = max(map(len, known), default=0)
        self._held = ""

    def feed(self, text: str) -> str:
        """What may be shown now."""
        if self._pattern is None:
            return text
        parts, place = [], 0
        self._held += text
        for found in self._pattern.finditer(self._held):
            parts.append(self._held[place : found.start()])
            place = found.end()
        rest = self._held[place:]
        kept = next((n for n in range(min(self._longest - 1, len(rest)), 0, -1) if rest[-n:] in self._beginnings), 0)
        shown = len(rest) - kept
        parts.append(rest[:shown])
        self._held = rest[shown:]
        return "".join(parts)

    def end(self) -> str:
        """What was held back."""
        rest, self._held = self._held, ""
        return rest
