"""Which worker each session has, and how many sessions each worker has. Knows no HTTP; workers are any hashables.

A session's turns go where its last successful answer came from (*bound*), or, until there is one, to the worker that
was chosen for it (*reserved*). Both count as a session of that worker, so that a burst of new sessions spreads.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

W = TypeVar("W", bound=Hashable)


class Entry(Generic[W]):
    """One session."""

    __slots__ = ("bound", "bound_turn", "is_forgotten", "moves", "reserved", "running", "used_at")

    def __init__(self, used_at: float) -> None:
        self.bound: W | None = None
        """The worker of its newest successful answer."""
        self.reserved: W | None = None
        """The worker chosen for a turn that runs, where that is not the bound one."""
        self.bound_turn = 0
        """Number of the turn that bound it."""
        self.running = 0
        self.used_at = used_at
        self.moves = 0
        self.is_forgotten = False

    @property
    def worker(self) -> W | None:
        """Where its next turn belongs."""
        return self.bound if self.reserved is None else self.reserved


class Turn(Generic[W]):
    """One running request of a session; made by `SessionTable.begin`, ended once."""

    __slots__ = ("entry", "key", "number")

    def __init__(self, key: Hashable, entry: Entry[W], number: int) -> None:
        self.key, self.entry, self.number = key, entry, number


class SessionTable(Generic[W]):
    """At most ``max_sessions`` sessions, each forgotten after ``ttl_s`` seconds without a turn.

    Times are seconds of any clock. Above the bound the one that was used longest ago is forgotten.
    """

    def __init__(self, *, ttl_s: float, max_sessions: int) -> None:
        self._ttl_s = ttl_s
        self._max_sessions = max_sessions
        self._entries: OrderedDict[Hashable, Entry[W]] = OrderedDict()
        self._count: Counter[W] = Counter()
        self._turns = 0
        self.expired = 0
        """Sessions forgotten because they were idle."""
        self.evicted = 0
        """Sessions forgotten because there were too many."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Entry[W] | None:
        return self._entries.get(key)

    def sessions_of(self, worker: W) -> int:
        """How many sessions are bound to it or reserved for it."""
        return self._count[worker]

    # ------------------------------------------------------------------------------------------------------- turns
    def begin(self, key: Hashable, now: float) -> Turn[W]:
        """A turn of this session runs from now on."""
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= self._max_sessions:
                self._drop(next(iter(self._entries)))
                self.evicted += 1
            entry = self._entries[key] = Entry(now)
        self._touch(key, entry, now)
        entry.running += 1
        self._turns += 1
        return Turn(key, entry, self._turns)

    def reserve(self, turn: Turn[W], worker: W) -> None:
        """The turn goes to this worker; later turns of the session follow it."""
        entry = turn.entry
        if not entry.is_forgotten:
            self._put(entry, entry.bound, None if worker == entry.bound else worker)

    def succeed(self, turn: Turn[W], worker: W, now: float) -> W | None:
        """The turn was answered by this worker: the session is bound to it. Returns the old worker if it moved.

        An older turn that ends late does not take the session back; nor is one counted whose session is forgotten.
        """
        entry = turn.entry
        entry.running -= 1
        if entry.is_forgotten:
            return None
        self._touch(turn.key, entry, now)
        old: W | None = None
        bound = entry.bound
        if turn.number > entry.bound_turn:
            old, bound, entry.bound_turn = entry.bound, worker, turn.number
        self._put(entry, bound, entry.reserved if entry.running and entry.reserved != bound else None)
        if old is None or old == bound:
            return None
        entry.moves += 1
        return old

    def fail(self, turn: Turn[W], now: float) -> None:
        """The turn had no good answer: what was reserved for it is free, and a session without any is forgotten."""
        entry = turn.entry
        entry.running -= 1
        if entry.is_forgotten:
            return
        self._touch(turn.key, entry, now)
        if entry.running:
            return
        if entry.bound is None:
            self._drop(turn.key)
        else:
            self._put(entry, entry.bound, None)

    # -------------------------------------------------------------------------------------------------- forgetting
    def forget(self, key: Hashable) -> None:
        """The session is over; a late answer touches nothing."""
        if key in self._entries:
            self._drop(key)

    def sweep(self, now: float) -> None:
        """Forgets sessions that had no turn for longer than the TTL."""
        oldest = now - self._ttl_s
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.used_at > oldest:
                return
            if entry.running:
                self._touch(key, entry, now)
            else:
                self._drop(key)
                self.expired += 1

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key)
        entry.is_forgotten = True
        self._put(entry, None, None)

    def _touch(self, key: Hashable, entry: Entry[W], now: float) -> None:
        entry.used_at = now
        self._entries.move_to_end(key)

    def _put(self, entry: Entry[W], bound: W | None, reserved: W | None) -> None:
        old = entry.bound if entry.reserved is None else entry.reserved
        new = bound if reserved is None else reserved
        entry.bound, entry.reserved = bound, reserved
        if old is new or old == new:
            return
        if old is not None:
            self._count[old] -= 1
            if self._count[old] <= 0:
                del self._count[old]
        if new is not None:
            self._count[new] += 1
