"""How many attempts each process has in flight at each worker, in memory that all of them see.

A table of worker keys (their digests; linear probing, nothing is ever taken out) and for each process a row of int32.
A process writes its own row alone, a cell with one aligned store; the others read it. Only a new key takes a lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

from router_core.types import Worker

log = logging.getLogger("router_core")

CAPACITY = 1 << 14
"""Workers that can be told apart in one run, those that are gone included."""


class Counts:
    """The shared memory behind ``fd``, as process ``slot`` uses it (the supervisor has none)."""

    def __init__(self, fd: int, slots: int, slot: int = 0) -> None:
        self.fd = fd
        self._slots, self._slot = slots, slot
        memory = memoryview(mmap.mmap(fd, _size(slots)))
        self._keys = memory[: 8 * CAPACITY].cast("Q")
        rows = memory[8 * CAPACITY :].cast("i")
        self._rows = [rows[CAPACITY * row : CAPACITY * (row + 1)] for row in range(slots)]
        self.own = self._rows[slot]
        self.others = [row for row in self._rows if row is not self.own]

    @classmethod
    def create(cls, slots: int) -> Counts:
        """New memory, all zero."""
        fd = os.memfd_create("router-core in flight")
        os.truncate(fd, _size(slots))
        return cls(fd, slots)

    def cell(self, key: str) -> int | None:
        """The place of a worker's counts, the same in every process; None when the table is full."""
        digest = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest()) or 1
        with self.locked():
            for step in range(CAPACITY):
                place = (digest + step) % CAPACITY
                if self._keys[place] in (0, digest):
                    self._keys[place] = digest
                    return place
        log.error("more than %d workers since the start: %s is balanced by each process alone", CAPACITY, key)
        return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other process takes a place. A record lock: one of flock() all who inherited the file would share."""
        fcntl.lockf(self.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def take_away(self, slot: int) -> int:
        """A process is gone: its counts are zero from now on. Returns how many attempts it had in flight."""
        row = self._rows[slot]
        lost = sum(row)
        row[:] = memoryview(bytes(4 * CAPACITY)).cast("i")
        return lost


def _size(slots: int) -> int:
    return CAPACITY * (8 + 4 * slots)


class CountedWorker(Worker):
    """A worker whose `inflight` is that of all processes."""

    __slots__ = ("_cell", "_counts")

    def __init__(
        self,
        counts: Counts,
        *,
        id: str,
        base_id: str,
        url: str,
        key: str,
        base_url: str,
        dp_rank: int | None,
        generation: int,
    ) -> None:
        self._counts = counts
        self._cell = counts.cell(key)
        super().__init__(  # by name: compiled, `**fields` would be taken for the first one
            id=id, base_id=base_id, url=url, key=key, base_url=base_url, dp_rank=dp_rank, generation=generation
        )

    @property
    def inflight(self) -> int:
        total, cell = self._own, self._cell
        if cell is not None:
            for row in self._counts.others:
                total += row[cell]
        return total

    def count(self, change: int) -> None:
        super().count(change)
        if self._cell is not None:
            self._counts.own[self._cell] += change
