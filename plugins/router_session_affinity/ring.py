"""Consistent hashing with virtual nodes: one key, one member, on every router that knows the same members.

Each member owns ``virtual_nodes`` points of a circle of 2**64; a key belongs to the first point at or after its own.
A member that joins takes about 1/N of the keys, all from others to itself; one that leaves gives its keys to the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from hashlib import blake2b


class HashRing:
    """Members are texts that mean the same everywhere, such as normalised worker URLs."""

    def __init__(self, virtual_nodes: int) -> None:
        self._virtual_nodes = virtual_nodes
        self._members: set[str] = set()
        self._newcomers: set[str] = set()
        """Members whose points are made at the next walk: thousands may join at once, and nobody may ever walk."""
        self._points: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: str) -> None:
        """A known member changes nothing."""
        if member not in self._members:
            self._members.add(member)
            self._newcomers.add(member)

    def remove(self, member: str) -> None:
        """An unknown member changes nothing."""
        if member in self._newcomers:
            self._newcomers.discard(member)
        elif member in self._members:
            self._points = [entry for entry in self._points if entry[1] != member]
        self._members.discard(member)

    def walk(self, key: str) -> Iterator[str]:
        """The members in the order in which the key belongs to them, each once."""
        if self._newcomers:
            self._take_in_newcomers()
        start, count = bisect_left(self._points, (_point(key), "")), len(self._points)
        seen: set[str] = set()
        for offset in range(count):
            member = self._points[(start + offset) % count][1]
            if member not in seen:
                seen.add(member)
                yield member
                if len(seen) == len(self._members):
                    return

    def _take_in_newcomers(self) -> None:
        for member in self._newcomers:
            self._points += [(_point(f"{member}#{node}"), member) for node in range(self._virtual_nodes)]
        self._newcomers.clear()
        self._points.sort()


def _point(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
