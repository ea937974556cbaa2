"""Whether a worker may have one more request, and who is first among those that may. Knows no HTTP and no router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

W = TypeVar("W")


class Full(StrEnum):
    """Why there is no room; the same text for everybody who waits for the same."""

    WORKER = "it has as many requests as it may (plugins.admission.max_inflight_per_worker)"
    ROUTER = "the router has as many requests in flight as it may (plugins.admission.max_inflight)"
    KV = "its KV cache is too full (plugins.admission.max_kv_usage)"


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds; None is none."""

    max_inflight_per_worker: int | None = None
    max_inflight: int | None = None
    max_kv_usage: float | None = None

    @property
    def is_any(self) -> bool:
        return (self.max_inflight_per_worker, self.max_inflight, self.max_kv_usage) != (None, None, None)

    def why_full(self, inflight: int, kv_usage: float | None) -> Full | None:
        """Why a worker gets no more now. A worker whose KV use is not known is not full by it."""
        if self.max_inflight_per_worker is not None and inflight >= self.max_inflight_per_worker:
            return Full.WORKER
        if self.max_kv_usage is not None and kv_usage is not None and kv_usage >= self.max_kv_usage:
            return Full.KV
        return None

    def reserve(self, inflight: int, kv_usage: float | None) -> float:
        """The share of its room that a worker has left, in [0, 1]: the smaller one of both bounds."""
        shares = [1.0]
        if self.max_inflight_per_worker is not None:
            shares.append(1.0 - inflight / self.max_inflight_per_worker)
        if kv_usage is not None:
            shares.append(1.0 - kv_usage / (self.max_kv_usage if self.max_kv_usage is not None else 1.0))
        return max(0.0, min(shares))


def kv_usage_in(stats: Mapping[str, float], keys: Sequence[str]) -> float | None:
    """The first of these statistics that is there."""
    return next((stats[key] for key in keys if key in stats), None)


def version_number(text: str | None) -> int | None:
    """A decimal version as a number, None for any other."""
    return int(text) if text is not None and len(text) <= 32 and text.isascii() and text.isdigit() else None


def first_by_version(versions: Mapping[W, str | None], tag: str | None) -> set[W]:
    """Who goes first: for a tagged request the oldest version that will do, for an untagged one the newest."""
    known = {worker: number for worker, text in versions.items() if (number := version_number(text)) is not None}
    oldest = version_number(tag)
    if oldest is not None:
        known = {worker: number for worker, number in known.items() if number >= oldest}
    if not known:
        return set()
    best = max(known.values()) if oldest is None else min(known.values())
    return {worker for worker, number in known.items() if number == best}
