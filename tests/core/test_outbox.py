"""Writes of one turn go out together and one alone at once, in order, and none is lost or said twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router_core.outbox import HELD_BYTES, Outbox, OutboxTransport


class Transport(asyncio.Transport):
    """What the system was given, and when it was told to close."""

    def __init__(self, log: list[tuple[str, bytes]], name: str = "a") -> None:
        super().__init__()
        self._log, self._name = log, name
        self._is_closing = False

    def write(self, data: Any) -> None:
        assert not self._is_closing
        self._log.append((self._name, bytes(data)))

    def close(self) -> None:
        self._is_closing = True
        self._log.append((self._name, b"<close>"))

    def abort(self) -> None:
        self._is_closing = True
        self._log.append((self._name, b"<abort>"))

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 3


async def end_of_turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.fixture
def log() -> list[tuple[str, bytes]]:
    return []


async def test_small_writes_go_out_at_the_end_of_the_turn_in_one_piece_each(log: list[tuple[str, bytes]]) -> None:
    outbox, loop = Outbox(), asyncio.get_running_loop()
    first, second = (OutboxTransport(Transport(log, name), outbox, loop) for name in "ab")
    first.write(b"1")
    second.write(b"2")
    first.writelines([b"3", b"4"])
    assert log == []
    assert first.get_write_buffer_size() == 3 + 3
    await end_of_turn()
    assert log == [("a", b"134"), ("b", b"2")]
    first.write(b"5")
    await end_of_turn()
    assert log[2:] == [("a", b"5")]


async def test_a_write_that_is_alone_in_its_turn_passes_at_once(log: list[tuple[str, bytes]]) -> None:
    transport = OutboxTransport(Transport(log), Outbox(), asyncio.get_running_loop())
    for number in (b"1", b"2"):
        transport.pass_on(number)
        assert log[-1] == ("a", number)
        await end_of_turn()
    assert log == [("a", b"1"), ("a", b"2")]


async def test_others_of_a_turn_wait_for_its_end_as_does_the_next_turn(
    log: list[tuple[str, bytes]],
) -> None:
    outbox, loop = Outbox(), asyncio.get_running_loop()
    first, second = (OutboxTransport(Transport(log, name), outbox, loop) for name in "ab")
    first.pass_on(b"1")
    second.pass_on(b"2")
    first.pass_on(b"3")
    assert log == [("a", b"1")]
    await end_of_turn()
    assert log[1:] == [("b", b"2"), ("a", b"3")]
    first.pass_on(b"4")
    assert len(log) == 3
    await end_of_turn()
    first.pass_on(b"5")  # the turn before it had one writer
    assert log[3:] == [("a", b"4"), ("a", b"5")]


async def test_what_is_held_goes_before_what_passes_at_once(log: list[tuple[str, bytes]]) -> None:
    transport = OutboxTransport(Transport(log), Outbox(), asyncio.get_running_loop())
    transport.write(b"head")
    transport.pass_on(b"chunk")
    await end_of_turn()
    assert log == [("a", b"headchunk")]


async def test_a_large_write_passes_at_once_behind_what_was_held(log: list[tuple[str, bytes]]) -> None:
    transport = OutboxTransport(Transport(log), Outbox(), asyncio.get_running_loop())
    large = b"x" * (HELD_BYTES + 1)
    transport.write(b"head")
    transport.write(large)
    assert log == [("a", b"head"), ("a", large)]
    transport.write(b"tail")
    await end_of_turn()
    assert log[2:] == [("a", b"tail")]


async def test_no_more_than_the_bound_is_held(log: list[tuple[str, bytes]]) -> None:
    transport = OutboxTransport(Transport(log), Outbox(), asyncio.get_running_loop())
    piece = b"x" * (HELD_BYTES // 4)
    for _ in range(9):
        transport.write(piece)
        assert transport.get_write_buffer_size() - 3 <= HELD_BYTES
    await end_of_turn()
    assert b"".join(data for _, data in log) == piece * 9


async def test_what_was_written_leaves_before_the_connection_closes(log: list[tuple[str, bytes]]) -> None:
    transport = OutboxTransport(Transport(log), Outbox(), asyncio.get_running_loop())
    transport.write(b"answer")
    transport.close()
    assert transport.is_closing()
    await end_of_turn()
    assert log == [("a", b"answer"), ("a", b"<close>")]


async def test_nothing_leaves_after_an_abort(log: list[tuple[str, bytes]]) -> None:
    transport = OutboxTransport(Transport(log), Outbox(), asyncio.get_running_loop())
    transport.write(b"answer")
    transport.abort()
    await end_of_turn()
    assert log == [("a", b"<abort>")]


async def test_a_connection_that_is_lost_meanwhile_is_not_written_to(log: list[tuple[str, bytes]]) -> None:
    inner = Transport(log)
    transport = OutboxTransport(inner, Outbox(), asyncio.get_running_loop())
    transport.write(b"answer")
    inner.close()
    await end_of_turn()
    assert log == [("a", b"<close>")]


async def test_one_connection_that_fails_costs_no_other_its_bytes(
    log: list[tuple[str, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    class Fails(Transport):
        def write(self, data: Any) -> None:
            raise OSError("spoilt")

    outbox, loop = Outbox(), asyncio.get_running_loop()
    for inner in (Fails(log, "a"), Transport(log, "b")):
        OutboxTransport(inner, outbox, loop).write(b"1")
    await end_of_turn()
    assert log == [("b", b"1")]
    assert "spoilt" in caplog.text
