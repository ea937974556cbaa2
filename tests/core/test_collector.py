"""Python's collector looks at what is under way while little is, and not while much is; freed memory is kept."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
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


PAGES_OF_ANSWERS = """
import resource
from router_core.garbage import keep_freed_memory

def pass_on():
    answers = [bytes(70_000) for _ in range(50)]

keep_freed_memory()
pass_on()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    pass_on()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="only glibc is told")
def test_memory_of_answers_is_not_given_back_and_had_again_page_by_page() -> None:
    done = subprocess.run([sys.executable, "-c", PAGES_OF_ANSWERS], capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    assert int(done.stdout) < 1_000, "all of it anew would be 17,000 pages"
