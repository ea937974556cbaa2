"""The windows of a worker: when it may abort what it runs."""

from __future__ import annotations

from router_core.types.worker import Windows


def test_a_window_is_open_until_it_is_closed() -> None:
    windows = Windows()
    assert not windows.were_open(0.0)
    windows.open("pause")
    assert windows.were_open(100.0)
    windows.close("pause", 10.0)
    assert windows.were_open(9.0)
    assert windows.were_open(10.0)
    assert not windows.were_open(10.1)


def test_windows_of_several_names_do_not_close_each_other() -> None:
    windows = Windows()
    windows.open("pause")
    windows.open("update")
    windows.close("update", 5.0)
    assert windows.were_open(50.0)
    windows.close("pause", 6.0)
    windows.close("pause", 60.0)  # it is closed already
    assert not windows.were_open(50.0)


def test_a_window_that_nobody_closes_ends_by_itself() -> None:
    windows = Windows()
    windows.open("pause", until=5.0)
    assert windows.were_open(5.0)
    assert not windows.were_open(5.1)
    windows.close("pause", 100.0)
    assert not windows.were_open(5.1)
