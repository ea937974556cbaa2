"""Which worker each group of requests has while some of them run, and a while after. Knows no HTTP."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

W_co = TypeVar("W_co", covariant=True)
W = TypeVar("W")


class Member(Protocol[W_co]):
    """A running request: whose worker is known as soon as it was chosen."""

    @property
    def worker(self) -> W_co | None: ...


class Group(Generic[W]):
    """Requests of one prompt. ``worker`` is asked for lazily, so that no moment lies between choosing and pinning."""

    __slots__ = ("_leader", "_worker", "has_served", "idle_since", "running")

    def __init__(self) -> None:
        self._worker: W | None = None
        self._leader: Member[W] | None = None
        self.running: set[Member[W]] = set()
        self.has_served = False
        """Whether any of its requests was answered; only then its worker is worth keeping."""
        self.idle_since = 0.0

    @property
    def worker(self) -> W | None:
        """The worker the group is pinned to: the one that its leader went to."""
        if self._leader is not None and (chosen := self._leader.worker) is not None:
            self._worker, self._leader = chosen, None
        return self._worker

    def follow(self, member: Member[W]) -> None:
        """The group goes wherever this request goes: it is the first, or their worker is out for it."""
        self._worker, self._leader = None, member

    def lose(self, member: Member[W]) -> None:
        """This request has ended."""
        _ = self.worker  # what its leader chose stays
        self.running.discard(member)
        if self._leader is member:
            self._leader = None


class GroupTable(Generic[W]):
    """Groups by their id: at most ``max_groups``, each kept ``linger_s`` seconds after its last request has ended."""

    def __init__(self, *, linger_s: float, max_groups: int) -> None:
        self._linger_s = linger_s
        self._max_groups = max_groups
        self._running: OrderedDict[str, Group[W]] = OrderedDict()
        self._idle: OrderedDict[str, Group[W]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._running) + len(self._idle)

    def enter(self, group_id: str, member: Member[W], now: float) -> Group[W]:
        """A request of this group runs from now on; entering twice counts once."""
        self.sweep(now)
        group = self._running.get(group_id)
        if group is None:
            group = self._idle.pop(group_id, None) or Group()
            self._running[group_id] = group
            self._bound()
        group.running.add(member)
        return group

    def leave(self, group_id: str, member: Member[W], now: float, *, has_served: bool) -> None:
        """The request has ended, well or not; the last one of its group starts the group's linger."""
        group = self._running.get(group_id)
        if group is None or member not in group.running:
            return
        group.lose(member)
        group.has_served |= has_served
        if not group.running:
            del self._running[group_id]
            if group.has_served and self._linger_s > 0:
                group.idle_since = now
                self._idle[group_id] = group

    def get(self, group_id: str) -> Group[W] | None:
        return self._running.get(group_id) or self._idle.get(group_id)

    def sweep(self, now: float) -> None:
        """Forgets groups whose linger is over."""
        while self._idle:
            group_id, group = next(iter(self._idle.items()))
            if now - group.idle_since < self._linger_s:
                return
            del self._idle[group_id]

    def _bound(self) -> None:
        while len(self) > self._max_groups:
            (self._idle or self._running).popitem(last=False)
