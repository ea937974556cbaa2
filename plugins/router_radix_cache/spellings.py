"""What the ids of prompts that came lately spell: siblings send one prompt many times, and it is read once."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spelling:
    """The text of some ids, None where they spell none; ``ends`` of each in its UTF-8, 0 without a text."""

    text: str | None
    ends: array[int]


class Spellings:
    """By packed ids; ``max_bytes`` of ids, ends and texts are remembered, those used longest ago go first."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._known: OrderedDict[bytes, Spelling] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, packed: bytes) -> Spelling | None:
        found = self._known.get(packed)
        if found is not None:
            self._known.move_to_end(packed)
        return found

    def keep(self, packed: bytes, spelling: Spelling) -> None:
        if packed in self._known:  # two read it at a time
            return
        self._known[packed] = spelling
        self._bytes += _size(packed, spelling)
        while self._bytes > self._max_bytes:
            self._bytes -= _size(*self._known.popitem(last=False))


def _size(packed: bytes, spelling: Spelling) -> int:
    return 2 * len(packed) + len(spelling.text or "") + 256
