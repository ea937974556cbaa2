"""Segments: the edges of the radix tree, each a run of tokens and the text they cover.

The tree branches at token boundaries, so half a token can never be inherited, and two token sequences of one text are
two branches. Children are found by the bytes of their first token: a text is looked up once for each *length* a first
token has (a handful), however many children there are. Labels are compared in place, by offset, never by slices of
the text.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from router_radix_cache.trajectory import Trajectory

SEGMENT_BYTES = 800
"""What a segment costs beside its text and tokens, rounded up (CPython 3.11)."""

TOKEN_BYTES = 8
"""An id and an end; a sampled token costs 8 more, kept with its trajectory."""

Buffer = bytes | memoryview


def common_length(text: bytes, at: int, label: Buffer) -> int:
    """How many bytes of ``label`` stand in ``text`` from ``at`` on.

    Halving with ``startswith`` compares each byte once or twice with memcmp; a loop over bytes is a thousand times
    slower.
    """
    view = memoryview(label).cast("B")
    low, high = 0, min(len(view), len(text) - at)
    if text.startswith(view[:high], at):
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(view[low:middle], at + low):
            low = middle
        else:
            high = middle - 1
    return low


class Segment:
    """A run of tokens below ``parent``; its trajectories, oldest first, end exactly at its last token.

    ``ends`` count from the start of the whole text, not of the segment, so neither splitting nor joining renumbers
    them. A segment that was split keeps its buffers and looks at their rest (a memoryview) until an eighth of them is
    unused: so a split costs what its head is long, and the head is part of the text that is being inserted.
    """

    __slots__ = ("children", "ends", "entry", "ids", "key", "key_lengths", "label", "newest", "parent", "trajectories")

    def __init__(self, parent: Segment | None, key: bytes, label: bytes, ids: bytes, ends: array[int]) -> None:
        self.parent = parent
        self.key = key
        self.label: Buffer = label
        self.ids: Buffer = ids
        self.ends: Any = ends  # array("I"), or a memoryview of one: both index, compare and bisect alike
        self.children: dict[bytes, list[Segment]] = {}
        self.key_lengths: tuple[int, ...] = ()
        self.trajectories: list[Trajectory] = []
        self.newest: Trajectory | None = None
        self.entry: list[Any] | None = None  # its place in the queue of leaves

    @property
    def token_count(self) -> int:
        return len(self.ends)

    @property
    def byte_count(self) -> int:
        """What the segment occupies, including buffer space that a split left unused."""
        return SEGMENT_BYTES + len(self.key) + _held_bytes(self.label) + 2 * _held_bytes(self.ids)

    @property
    def is_held(self) -> bool:
        return any(trajectory.holds for trajectory in self.trajectories)

    @property
    def last_tick(self) -> int:
        return max((trajectory.tick for trajectory in self.trajectories), default=0)

    @property
    def last_used_s(self) -> float:
        return max((trajectory.used_s for trajectory in self.trajectories), default=0.0)

    def each_child(self) -> Iterator[Segment]:
        for bucket in self.children.values():
            yield from bucket

    def attach(self, child: Segment) -> None:
        """Make ``child`` a child, under its key."""
        child.parent = self
        bucket = self.children.get(child.key)
        if bucket is not None:
            bucket.append(child)
            return
        self.children[child.key] = [child]
        if len(child.key) not in self.key_lengths:
            self.key_lengths = tuple(sorted({*self.key_lengths, len(child.key)}))

    def detach(self, child: Segment) -> None:
        """Take ``child`` out; it keeps its parent, so that a match that was made earlier can still be read."""
        bucket = self.children[child.key]
        bucket.remove(child)
        if bucket:
            return
        del self.children[child.key]
        if len(self.children) < 64:  # a stale length costs a look-up, a scan of many keys costs more
            self.key_lengths = tuple(sorted({len(key) for key in self.children}))

    def replace(self, child: Segment, other: Segment) -> None:
        """Put ``other`` in the place of ``child``; both have the same key."""
        bucket = self.children[child.key]
        bucket[bucket.index(child)] = other
        other.parent = self

    def tokens_shared(self, text: bytes, at: int, ids: bytes, ends: bytes, first: int) -> int:
        """How many tokens of this segment stand at ``first`` in another sequence: same id, same end, same text."""
        offset = 4 * first
        if text.startswith(self.label, at) and ids.startswith(self.ids, offset) and ends.startswith(self.ends, offset):
            return len(self.ends)
        left = (len(ids) - offset) // 4
        if left < len(self.ends) and self.ids[: 4 * left] == ids[offset:]:  # a prompt of which answers are stored
            rest = text[at:]
            if self.label[: len(rest)] == rest and self.ends[:left].tobytes() == ends[offset:]:
                return left
        same = min(common_length(ids, offset, self.ids), common_length(ends, offset, self.ends)) // 4
        return min(same, bisect_right(self.ends, at + common_length(text, at, self.label)))

    def tokens_within(self, text: bytes, limit: int) -> int:
        """How many tokens end at or before byte ``limit`` of ``text``, without leaving a part of a character."""
        count = bisect_right(self.ends, limit)
        while count and not is_character_start(text, self.ends[count - 1]):
            count -= 1
        return count

    def split(self, at: int, count: int) -> Segment:
        """Cut off the first ``count`` tokens as a new parent and return it; ``at`` is the byte the label starts at.

        The segment itself stays the lower part, with its children and trajectories.
        """
        size = self.ends[count - 1] - at
        head = Segment(
            self.parent,
            self.key,
            bytes(self.label[:size]),
            bytes(self.ids[: 4 * count]),
            array("I", bytes(memoryview(self.ends)[:count])),
        )
        head.newest = self.newest
        if self.parent is not None:
            self.parent.replace(self, head)
        self.key = bytes(self.label[size : self.ends[count] - at])
        self.label = _rest(self.label, size)
        self.ids = _rest(self.ids, 4 * count)
        rest: Any = memoryview(self.ends)[count:]
        self.ends = array("I", bytes(rest)) if _is_wasteful(len(rest), len(rest.obj)) else rest
        head.attach(self)
        return head

    def absorb_parent(self) -> None:
        """Join with a parent that has no other child and no trajectory; this segment stays, the parent goes."""
        parent = self.parent
        if parent is None or parent.parent is None:
            raise ValueError("a segment below the root has no parent to absorb")
        parent.parent.replace(parent, self)
        self.key = parent.key
        self.label = bytes(parent.label) + bytes(self.label)
        self.ids = bytes(parent.ids) + bytes(self.ids)
        self.ends = array("I", bytes(parent.ends) + bytes(self.ends))


def is_character_start(text: bytes, at: int) -> bool:
    """Whether ``at`` is the start of a character of UTF-8 bytes, or their end."""
    return at >= len(text) or text[at] & 0xC0 != 0x80


def _is_wasteful(used: int, held: int) -> bool:
    return 8 * used < 7 * held


def _rest(buffer: Buffer, start: int) -> Buffer:
    rest = memoryview(buffer)[start:]
    return bytes(rest) if _is_wasteful(len(rest), len(rest.obj)) else rest  # type: ignore[arg-type]  # always bytes


def _held_bytes(buffer: Buffer) -> int:
    return len(buffer.obj) if isinstance(buffer, memoryview) else len(buffer)  # type: ignore[arg-type]  # always bytes
