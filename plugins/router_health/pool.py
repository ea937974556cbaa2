"""How many workers may be out at a time: the panic rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """One worker of the pool as the panic rule sees it."""

    is_ready: bool
    is_refusing: bool = False
    """Out because it refused connections; such workers are nobody's choice and are not counted against the bound."""


def may_eject(others: Iterable[Member], max_out_share: float) -> bool:
    """Whether one more worker may be taken out although it takes connections; ``others`` are the rest of the pool.

    The last ready worker stays, and so does one above the share: where most of a pool looks ill, it is more likely
    that the network or the probe is.
    """
    others = list(others)
    out = sum(not member.is_ready and not member.is_refusing for member in others)
    return any(member.is_ready for member in others) and out + 1 <= max_out_share * (len(others) + 1)
