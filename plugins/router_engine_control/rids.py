"""Which running requests are known by which rid."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class RidTable(Generic[T]):
    """rid -> its holders, in the order in which they came; at most ``max_rids`` rids, later ones are not known."""

    def __init__(self, max_rids: int) -> None:
        self._max_rids = max_rids
        self._holders: dict[str, list[T]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, rid: str, holder: T) -> None:
        if rid in self._holders or len(self._holders) < self._max_rids:
            self._holders.setdefault(rid, []).append(holder)

    def remove(self, rid: str, holder: T) -> None:
        holders = self._holders.get(rid, [])
        if holder in holders:
            holders.remove(holder)
            if not holders:
                del self._holders[rid]

    def get(self, rid: str) -> list[T]:
        """Who holds exactly this rid."""
        return list(self._holders.get(rid, ()))

    def starting_with(self, prefix: str) -> list[T]:
        """Who holds a rid that begins so: SGLang aborts by prefix."""
        return [holder for rid, holders in self._holders.items() if rid.startswith(prefix) for holder in holders]
