"""Rows kept per trajectory, bounded, and what was wrong with those that are not complete."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from router_routed_experts.codecs import Ids
from router_routed_experts.reasons import Reason, RowsError
from router_routed_experts.rows import RowTable, Verdict

ENTRY_BYTES = 1024
"""What an entry costs beside its rows, rounded up."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """One answer whose rows could not be kept."""

    reason: Reason
    detail: str
    worker: str


@dataclass(slots=True)
class Entry:
    """The rows of one trajectory; with a complaint it is incomplete, whatever rows there are."""

    table: RowTable = field(default_factory=RowTable)
    complaints: list[Complaint] = field(default_factory=list)
    used_s: float = 0.0

    @property
    def is_complete(self) -> bool:
        return not self.complaints


class RowStore:
    """Entries by key (a rid, a session's branch), the one used longest ago dropped first.

    ``max_bytes`` counts rows that several entries share once. ``dropped`` counts entries lost to the bounds.
    """

    def __init__(
        self, *, max_bytes: int | None = None, ttl_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._users: dict[int, int] = {}  # by identity of a block of rows
        self.byte_count = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: str, verdict: Verdict, worker: str, *, parent: str | None = None, row_count: int = 0) -> Entry:
        """Put an answer's rows to those of ``key``, or note what is wrong with them.

        A new key continues the first ``row_count`` rows of ``parent``. An entry never loses a complaint: rows behind an
        answer without rows cannot be complete.
        """
        self.expire()
        entry = self._entries.get(key)
        if entry is None:
            entry = self._opened(key, parent, row_count)
        if verdict.reason is not None:
            entry.complaints.append(Complaint(verdict.reason, verdict.detail, worker))
        elif verdict.block is not None:
            try:
                self._replace_table(entry, entry.table.extended(verdict.block))
            except RowsError as error:
                entry.complaints.append(Complaint(error.reason, error.detail, worker))
        self._use(key, entry)
        self._enforce_bounds()
        return entry

    def get(self, key: str) -> Entry | None:
        """The entry, or None when there is none (any more)."""
        self.expire()
        entry = self._entries.get(key)
        if entry is not None:
            self._use(key, entry)
        return entry

    def discard(self, key: str) -> None:
        """Drop an entry that is not needed any more."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._replace_table(entry, RowTable())
            self.byte_count -= ENTRY_BYTES

    def expire(self) -> None:
        """Drop what was not used for ``ttl_s``."""
        if self._ttl_s is None:
            return
        limit = self._clock() - self._ttl_s
        while self._entries and next(iter(self._entries.values())).used_s < limit:
            self._drop_oldest()

    def _opened(self, key: str, parent: str | None, row_count: int) -> Entry:
        entry = self._entries[key] = Entry()
        self.byte_count += ENTRY_BYTES
        earlier = self._entries.get(parent) if parent is not None else None
        if earlier is not None:
            entry.complaints.extend(earlier.complaints)
            self._replace_table(entry, earlier.table.first(row_count))
        return entry

    def _replace_table(self, entry: Entry, table: RowTable) -> None:
        for block in table.blocks:
            self._count(block, 1)
        for block in entry.table.blocks:
            self._count(block, -1)
        entry.table = table

    def _count(self, block: Ids, users: int) -> None:
        # a cut block is a view: what it keeps in memory is the whole of the block it was cut from
        owner = block.base if isinstance(block.base, np.ndarray) else block
        known = self._users.get(id(owner), 0)
        if known + users:
            self._users[id(owner)] = known + users
        else:
            del self._users[id(owner)]
        if known == 0 or known + users == 0:
            self.byte_count += users * owner.nbytes

    def _use(self, key: str, entry: Entry) -> None:
        entry.used_s = self._clock()
        self._entries.move_to_end(key)

    def _enforce_bounds(self) -> None:
        while self._max_bytes is not None and self.byte_count > self._max_bytes and self._entries:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self.discard(next(iter(self._entries)))
        self.dropped += 1
