"""A worker's KV cache with prefix sharing, as SGLang's radix cache and vLLM's block cache behave at large."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens that stands after the same tokens wherever it appears."""

    name: str
    tokens: int


class KvCache:
    """Segments of prompts and answers, up to ``capacity`` tokens; what is in use stays, of the rest the oldest goes.

    A prompt is a path of segments; a segment is put down behind its successors, so that ends go before beginnings.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens = 0
        self._idle: OrderedDict[Segment, None] = OrderedDict()
        self._used: dict[Segment, int] = {}

    def hit_tokens(self, path: Sequence[Segment]) -> int:
        """Tokens from the start of a prompt that need not be computed."""
        hit = 0
        for segment in path:
            if segment not in self._used and segment not in self._idle:
                break
            hit += segment.tokens
        return hit

    def take(self, path: Sequence[Segment]) -> bool:
        """A request uses these from now on; False, and nothing changes, when there is no room for them."""
        missing = sum(s.tokens for s in path if s not in self._used and s not in self._idle)
        evictable = sum(s.tokens for s in self._idle) - sum(s.tokens for s in path if s in self._idle)
        if self.tokens - evictable + missing > self.capacity:
            return False
        for segment in path:
            if segment in self._idle:
                del self._idle[segment]
                self._used[segment] = 1
            elif segment in self._used:
                self._used[segment] += 1
            else:
                self._used[segment] = 1
                self.tokens += segment.tokens
        while self.tokens > self.capacity:
            oldest, _ = self._idle.popitem(last=False)
            self.tokens -= oldest.tokens
        return True

    def give_back(self, path: Sequence[Segment]) -> None:
        """A request has ended; what it used stays until the room is needed."""
        for segment in reversed(path):
            self._used[segment] -= 1
            if not self._used[segment]:
                del self._used[segment]
                self._idle[segment] = None

    def clear(self) -> None:
        self.tokens = 0
        self._idle.clear()
        self._used.clear()
