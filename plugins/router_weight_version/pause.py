"""Pauses as leases, and the epochs that tell a decision taken before a pause from one taken after. Knows no clock."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class _Pause:
    epoch: int
    """Of its newest pause."""
    until: float | None
    """Time (s) at which the lease ends; None once it was resumed."""


class Pauses:
    """The pauses of the router as a whole (target None) and of single targets.

    Every pause begins an epoch. A decision remembers the epoch in which it was taken and is void once its target, or
    the router, was paused in a later one, even if it was resumed since: between the two anything may have changed.
    """

    def __init__(self) -> None:
        self.epoch = 0
        """0: nothing was ever paused."""
        self._pauses: dict[Hashable | None, _Pause] = {}

    def pause(self, target: Hashable | None, until: float) -> int:
        """Begins a pause or renews its lease; returns the new epoch."""
        self.epoch += 1
        self._pauses[target] = _Pause(self.epoch, until)
        return self.epoch

    def resume(self, target: Hashable | None) -> bool:
        """Ends a pause; whether there was one."""
        found = self._pauses.get(target)
        if found is None or found.until is None:
            return False
        found.until = None
        return True

    def forget(self, target: Hashable) -> None:
        """The target is gone."""
        self._pauses.pop(target, None)

    def is_paused(self, target: Hashable | None) -> bool:
        """Whether this very target is paused; of a single one, whatever holds for the router."""
        found = self._pauses.get(target)
        return found is not None and found.until is not None

    @property
    def is_any(self) -> bool:
        """Whether anything is paused."""
        return any(found.until is not None for found in self._pauses.values())

    def is_void(self, decided_in: int, target: Hashable) -> bool:
        """Whether a decision for ``target``, taken in that epoch, has to be taken again."""
        return any(
            (found := self._pauses.get(key)) is not None and (found.until is not None or found.epoch > decided_in)
            for key in (None, target)
        )

    def until(self, target: Hashable | None) -> float | None:
        """When the lease of a paused target ends."""
        found = self._pauses.get(target)
        return None if found is None else found.until

    def described(self, name_of: Callable[[Any], str]) -> tuple[int, list[tuple[str | None, int, float | None]]]:
        """The epoch, and each pause by the name of its target."""
        named = ((None if key is None else name_of(key), found) for key, found in self._pauses.items())
        return self.epoch, [(name, found.epoch, found.until) for name, found in named]

    def adopt(self, epoch: int, pauses: Iterable[tuple[Hashable | None, int, float | None]]) -> None:
        """Takes what was `described`, its targets found again."""
        self.epoch = epoch
        self._pauses = {target: _Pause(begun_in, until) for target, begun_in, until in pauses}

    def next_end(self) -> float | None:
        """When the first lease ends."""
        return min((found.until for found in self._pauses.values() if found.until is not None), default=None)

    def expire(self, now: float) -> list[Hashable | None]:
        """Ends the leases that are over, and returns whose they were."""
        over = [key for key, found in self._pauses.items() if found.until is not None and found.until <= now]
        for key in over:
            self._pauses[key].until = None
        return over
