"""Room for open files, made once at the start."""

from __future__ import annotations

import os
import sys

import pytest

from router_core.file_limit import AT_ONCE, grow_file_table

if sys.platform == "win32":
    pytest.skip("no limit of open files there", allow_module_level=True)
import fcntl
import resource


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers that a file was to have."""
    numbers: list[int] = []

    def note(_: int, command: int, number: int) -> int:
        assert command == fcntl.F_DUPFD_CLOEXEC
        numbers.append(number)
        return os.open(os.devnull, os.O_RDONLY)

    monkeypatch.setattr(fcntl, "fcntl", note)
    return numbers


def limited(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))


@pytest.mark.parametrize("limit", [1 << 30, resource.RLIM_INFINITY])
@pytest.mark.parametrize("held", [1 << 29, 1 << 40])
def test_a_bound_that_is_meant_as_none_takes_no_gigabytes(
    asked: list[int], monkeypatch: pytest.MonkeyPatch, limit: int, held: int
) -> None:
    limited(monkeypatch, limit)
    grow_file_table(held)
    assert asked == [1 << 20]


def test_there_is_room_for_what_may_be_held_as_far_as_the_limit_goes(
    asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, 1 << 20)
    grow_file_table(1000)
    limited(monkeypatch, 300)
    grow_file_table(1000)
    assert asked[0] > 2 * AT_ONCE + 1000
    assert asked[1] == 299


def test_nothing_stays_open() -> None:
    before = os.listdir("/dev/fd")
    grow_file_table(1)
    assert os.listdir("/dev/fd") == before
