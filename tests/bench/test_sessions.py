"""Captured sessions in a router of its own: many at once, many one after another; nothing is left, nothing grows.

The large runs (4,096 at once, 10,000 in turn) are made by hand: ``python -m tests.bench.sessions``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.sessions import at_once, captured_sessions, in_turn

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc (Linux)"),
    pytest.mark.timeout(120),
]
AT_ONCE, IN_TURN = 256, 500
GROWTH_KIB = 1024
"""More than half of the sessions may add; each holds tens of KiB while it is open, so a leak of one is seen."""
OPEN_KIB = 256


async def test_sessions_at_once_are_captured_and_leave_nothing() -> None:
    async with captured_sessions(turns=2) as sessions:
        found = await at_once(sessions, AT_ONCE)
    assert found.inflight == AT_ONCE
    assert len(found.left) == 4
    assert set(found.left.values()) == {0.0}
    assert found.resident_kib["talked"] - found.resident_kib["before"] < AT_ONCE * OPEN_KIB


async def test_memory_is_flat_over_sessions_one_after_another() -> None:
    async with captured_sessions(turns=2) as sessions:
        resident = await in_turn(sessions, IN_TURN, samples=2, say=lambda line: None)
        left = await sessions.left()
    assert set(left.values()) == {0.0}
    assert resident[1] - resident[0] < GROWTH_KIB, "the second half of the sessions left something behind"
