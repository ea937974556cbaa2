"""Paths of segments: made when a sequence is stored, cut back when its trajectory goes."""

from __future__ import annotations

from array import array

from router_radix_cache.segments import Segment
from router_radix_cache.trajectory import Trajectory

JOIN_MAX_BYTES = 65536
"""Segments that branch no more are joined up to this text length; a longer one would cost more to copy than it
saves."""


class Paths:
    """All segments of a tree below one root, and what they occupy."""

    def __init__(self) -> None:
        self.root = Segment(None, b"", b"", b"", array("I"))
        self.segments = 0
        self.tokens = 0
        self.bytes = 0

    def place(self, text: bytes, ids: bytes, ends: array[int], packed_ends: bytes) -> list[Segment]:
        """The segments from below the root to the end of a sequence; the missing ones are made."""
        path: list[Segment] = []
        parent, at, first = self.root, 0, 0
        while first < len(ends):
            found, shared = self._shared_child(parent, text, at, ids, packed_ends, first, text[at : ends[first]])
            if found is None:
                parent = self._grow(parent, text[at : ends[first]], text[at:], ids[4 * first :], ends[first:])
                shared = len(ends) - first
            else:
                parent = found if shared == len(found.ends) else self._split(found, at, shared)
            path.append(parent)
            first += shared
            at = ends[first - 1]
        return path

    def follow(self, text: bytes, ids: bytes, ends: array[int]) -> tuple[Segment, int]:
        """The segment in which the longest stored beginning of a sequence ends, and how many tokens it has."""
        packed_ends = ends.tobytes()
        segment, at, first = self.root, 0, 0
        while first < len(ends):
            found, shared = self._shared_child(segment, text, at, ids, packed_ends, first, text[at : ends[first]])
            if found is None:
                break
            segment, first = found, first + shared
            at = ends[first - 1]
            if shared < len(found.ends):
                break
        return segment, first

    def prune(self, segment: Segment, gone: Trajectory) -> tuple[Segment, list[Segment]]:
        """Take out segments, from ``segment`` upwards, that ``gone`` was the last to need.

        Returns the lowest segment that stays (perhaps the root) and those that went.
        """
        removed = []
        while segment.parent is not None and not segment.trajectories and not segment.children:
            segment.parent.detach(segment)
            self.segments -= 1
            self.tokens -= segment.token_count
            self.bytes -= segment.byte_count
            removed.append(segment)
            segment = segment.parent
        renew_newest(segment, gone)
        if segment.parent is not None and not segment.trajectories and len(segment.children) == 1:
            self._join(segment)
        return segment, removed

    @staticmethod
    def _shared_child(
        parent: Segment, text: bytes, at: int, ids: bytes, ends: bytes, first: int, key: bytes
    ) -> tuple[Segment | None, int]:
        for child in parent.children.get(key, ()):
            shared = child.tokens_shared(text, at, ids, ends, first)
            if shared:
                return child, shared
        return None, 0

    def _grow(self, parent: Segment, key: bytes, label: bytes, ids: bytes, ends: array[int]) -> Segment:
        segment = Segment(parent, key, label, ids, ends)
        parent.attach(segment)
        self.segments += 1
        self.tokens += segment.token_count
        self.bytes += segment.byte_count
        return segment

    def _split(self, segment: Segment, at: int, count: int) -> Segment:
        self.bytes -= segment.byte_count
        head = segment.split(at, count)
        self.bytes += segment.byte_count + head.byte_count
        self.segments += 1
        return head

    def _join(self, segment: Segment) -> None:
        (bucket,) = segment.children.values()
        if len(bucket) > 1 or len(segment.label) + len(bucket[0].label) > JOIN_MAX_BYTES:
            return
        child = bucket[0]
        self.bytes -= segment.byte_count + child.byte_count
        child.absorb_parent()
        self.bytes += child.byte_count
        self.segments -= 1


def renew_newest(segment: Segment | None, gone: Trajectory) -> None:
    """Put another trajectory in the place of ``gone`` wherever it was the newest, from ``segment`` to the root."""
    while segment is not None:
        if segment.newest is gone:
            known = [*segment.trajectories, *(child.newest for child in segment.each_child() if child.newest)]
            segment.newest = max(known, key=lambda trajectory: trajectory.serial, default=None)
        segment = segment.parent
