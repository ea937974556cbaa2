"""Python's collector looks at what is under way while little is, and not while much is."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from router_core.garbage import FEW, Collector


class Knot:
    """A cycle."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _by_hand() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def passed_over() -> weakref.ref[Knot]:
    """Garbage that was none yet when the collector looked at what is young."""
    knot = Knot()
    gc.collect(0)
    return weakref.ref(knot)


def test_what_one_look_has_passed_over_is_freed_once_little_runs() -> None:
    gc.collect()
    running = set(range(FEW))
    collector, left = Collector(running), passed_over()
    collector.look()
    assert left() is not None
    running.pop()
    collector.look()
    assert left() is None


def test_where_nothing_was_passed_over_nothing_is_looked_at() -> None:
    gc.collect()
    left = weakref.ref(Knot())
    Collector(()).look()
    assert left() is not None
