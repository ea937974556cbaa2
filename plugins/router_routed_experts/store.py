"""Rows kept per trajectory, bounded, and what was wrong with those that are not complete."""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from router_routed_experts.codecs import Ids
from router_routed_experts.reasons import Reason, RowsError
from router_routed_experts.rows import NO_ROWS, RowTable, Verdict

ENTRY_BYTES = 1024
"""What an entry costs beside its rows, rounded up."""


@dataclass(slots=True)
class Complaint:
    """One answer whose rows could not be kept."""

    reason: Reason
    detail: str
    worker: str


@dataclass(slots=True, eq=False)
class Entry:
    """The rows of one trajectory; with a complaint it is incomplete, whatever rows there are.

    ``token_ids`` are those of the whole trajectory, where they are known and may still be continued.
    """

    table: RowTable
    complaints: list[Complaint]
    token_ids: array[int] | None = None
    used_s: float = 0.0

    @property
    def is_complete(self) -> bool:
        return not self.complaints


class RowStore:
    """Entries by key (a rid), the one used longest ago dropped first.

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

    def add(
        self,
        key: str,
        verdict: Verdict,
        worker: str,
        *,
        parent: Entry | None = None,
        start: int = 0,
        token_ids: array[int] | None = None,
    ) -> Entry:
        """Keep an answer's rows, or what is wrong with them, in place of what the key named before.

        They continue those of ``parent`` before row ``start``, whether or not that entry is still kept; without one
        they begin there. A complaint is handed on: rows behind an answer without rows cannot be complete.
        """
        now = self._expired()
        if parent is None:
            entry = Entry(RowTable(start=start) if start else NO_ROWS, [], token_ids)
        else:
            entry = Entry(parent.table.first(start), list(parent.complaints), token_ids)
        if verdict.reason is not None:
            entry.complaints.append(Complaint(verdict.reason, verdict.detail, worker))
        elif verdict.block is not None:
            try:
                entry.table = entry.table.extended(verdict.block)
            except RowsError as error:
                entry.complaints.append(Complaint(error.reason, error.detail, worker))
        self._count_all(entry, 1)
        self.discard(key)
        self._entries[key] = entry  # the newest
        entry.used_s = now
        self._enforce_bounds()
        return entry

    def forget_tokens(self, key: str) -> None:
        """Drop the ids of a trajectory that has been continued; its rows stay."""
        entry = self._entries.get(key)
        if entry is not None and entry.token_ids is not None:
            self.byte_count -= 4 * len(entry.token_ids)
            entry.token_ids = None

    def peek(self, key: str) -> Entry | None:
        """The entry, without counting that as a use."""
        return self._entries.get(key)

    def get(self, key: str) -> Entry | None:
        """The entry, or None when there is none (any more)."""
        now = self._expired()
        entry = self._entries.get(key)
        if entry is not None:
            entry.used_s = now
            self._entries.move_to_end(key)
        return entry

    def discard(self, key: str) -> None:
        """Drop an entry that is not needed any more."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._count_all(entry, -1)

    def expire(self) -> None:
        """Drop what was not used for ``ttl_s``."""
        self._expired()

    def _expired(self) -> float:
        """The same; the time at which it was done."""
        now = self._clock()
        if self._ttl_s is not None:
            limit = now - self._ttl_s
            while self._entries and next(iter(self._entries.values())).used_s < limit:
                self._drop_oldest()
        return now

    def _count_all(self, entry: Entry, users: int) -> None:
        ids = entry.token_ids
        self.byte_count += users * (ENTRY_BYTES if ids is None else ENTRY_BYTES + 4 * len(ids))
        for block in entry.table.blocks:
            self._count(block, users)

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

    def _enforce_bounds(self) -> None:
        while self._max_bytes is not None and self.byte_count > self._max_bytes and self._entries:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self.discard(next(iter(self._entries)))
        self.dropped += 1
