"""Which weight versions are new enough."""

from __future__ import annotations

REMEMBERED = 4096
"""Versions remembered, so that a late answer of an old one is not taken for a new one."""


class VersionLog:
    """Weight versions in the order they were first seen; the last ``kept`` of them are current (None: all are)."""

    def __init__(self, kept: int | None) -> None:
        self._kept = kept
        self.keeps_all = kept is None
        self._seen: dict[str, None] = {}
        self._current: list[str] = []

    def see(self, weight_version: str | None) -> bool:
        """Note a version; True when it is a new one, so that others may have become stale."""
        if self._kept is None or weight_version is None or weight_version in self._seen:
            return False
        if len(self._seen) >= REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[weight_version] = None
        self._current = [*self._current, weight_version][-self._kept :]
        return True

    def is_stale(self, weight_version: str | None) -> bool:
        """Whether newer versions have taken the place of this one."""
        return self._kept is not None and weight_version is not None and weight_version not in self._current
