"""What tests of several processes ask of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from router_core.processes.ownership import Owners
from router_core.testing import RawClient

MANY = 14
"""Connections of which some reach each of two processes, but for one time in eight thousand."""


def children_of(pid: int) -> list[int]:
    """The processes that a supervisor started, in the order of their slots at the start."""
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def ids_of(slot: int, count: int, processes: int = 2) -> list[str]:
    """Session ids that a slot owns."""
    owners = Owners(processes, slot)
    return [name for name in (f"run-{number}" for number in range(40 * count)) if owners.is_ours(name)][:count]


Connect = Callable[..., Awaitable[Sequence[RawClient]]]


async def until(is_true: Callable[[], bool]) -> None:
    """Until another process has done what it does; nobody tells."""
    async with asyncio.timeout(60):
        while not is_true():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.02)
