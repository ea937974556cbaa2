"""The queue of leaves, least recently used first."""

from __future__ import annotations

import heapq
import itertools
from typing import Any

from router_radix_cache.segments import Segment


class LeafQueue:
    """Leaves of the tree by their last use.

    Using a leaf costs nothing here: its entry is corrected when it comes up. A segment that has children by then, or
    that a running request holds, drops out and has to be offered again when that ends.
    """

    def __init__(self) -> None:
        self._heap: list[list[Any]] = []  # [tick, number, segment or None]; no number occurs twice
        self._numbers = itertools.count()
        self._withdrawn = 0

    def offer(self, segment: Segment) -> None:
        """Take in a segment that is or became a leaf; nothing happens when it is in already."""
        if segment.entry is None:
            segment.entry = self._entry(segment)
            heapq.heappush(self._heap, segment.entry)

    def renew(self, segment: Segment) -> None:
        """Take in a leaf again that lost a trajectory: what is left may have been used longer ago than what went."""
        if segment.entry is not None and segment.entry[0] > segment.last_tick:
            self.withdraw(segment)
        self.offer(segment)

    def withdraw(self, segment: Segment) -> None:
        """Forget a segment that left the tree."""
        if segment.entry is None:
            return
        segment.entry[2] = None
        segment.entry = None
        self._withdrawn += 1
        if self._withdrawn > 64 + len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2] is not None]
            heapq.heapify(self._heap)
            self._withdrawn = 0

    def oldest(self) -> Segment | None:
        """The leaf that was used longest ago and that nothing holds."""
        while self._heap:
            tick, _, segment = self._heap[0]
            if segment is None:
                heapq.heappop(self._heap)
                self._withdrawn -= 1
            elif segment.children or segment.is_held:
                heapq.heappop(self._heap)
                segment.entry = None
            elif segment.last_tick != tick:
                segment.entry = self._entry(segment)
                heapq.heapreplace(self._heap, segment.entry)
            else:
                found: Segment = segment
                return found
        return None

    def _entry(self, segment: Segment) -> list[Any]:
        return [segment.last_tick, next(self._numbers), segment]
