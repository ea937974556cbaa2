"""A request waits for the end of a turn in which others write, too: what may happen to its connection meanwhile."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from router_core.errors import AttemptWithdrawn, WorkerLost
from router_core.outbox import Outbox
from router_core.upstream.connection import KEPT_TARGET_BYTES, KEPT_TARGETS, Address, Connection
from router_core.upstream.interface import Outgoing

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Transport(asyncio.Transport):
    def __init__(self, end: socket.socket) -> None:
        super().__init__({"socket": end})
        self.written = b""
        self.is_over = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_over

    def abort(self) -> None:
        self.is_over = True


class Other:
    """Somebody else who writes in this turn."""

    def flush(self) -> None:
        pass


class Worker:
    """A connection, its transport, and the far end of its socket."""

    def __init__(self, far: socket.socket, near: socket.socket) -> None:
        self.far = far
        self.released: list[Connection] = []
        self.written_for = 0
        self._outbox, loop = Outbox(), asyncio.get_running_loop()
        self.connection = Connection(Address("http://w:1"), loop, self._outbox, 65536, self.released.append)
        self.transport = Transport(near)
        self.connection.connection_made(self.transport)

    def begin(self) -> None:
        self.written_for += 1

    def ask(self) -> Any:
        self._outbox.add(Other(), self.connection.loop)
        return self.ask_alone()

    def ask_alone(self) -> Any:
        return self.connection.start(Outgoing("POST", "http://w:1", b"/generate", [], b"{}"), self.begin)

    async def serve_one(self) -> None:
        answer = self.ask()
        await end_of_turn()
        self.connection.data_received(ANSWER)
        assert await has_head(answer) is True
        assert answer.take_whole() == b"ok"
        assert self.released == [self.connection]
        self.transport.written = b""


@pytest.fixture
async def worker() -> Any:
    far, near = socket.socketpair()
    with far, near:
        yield Worker(far, near)


@pytest.fixture(autouse=True)
def _no_warnings(recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    yield
    told = [str(warning.message) for warning in recwarn.list]
    assert not [text for text in told if "throw() is deprecated" not in text]  # compiled, from Python 3.12 on


async def end_of_turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def has_head(answer: Any) -> bool:
    """False: nothing was written for it."""
    while (waits_for := answer.head()) is not None:
        await waits_for
    return not answer.is_unsent


async def test_a_request_leaves_in_one_piece_at_the_end_of_the_turn(worker: Worker) -> None:
    worker.ask()
    assert (worker.transport.written, worker.written_for) == (b"", 0)
    await end_of_turn()
    assert worker.transport.written == b"POST /generate HTTP/1.1\r\nhost: w:1\r\ncontent-length: 2\r\n\r\n{}"
    assert worker.written_for == 1


async def test_a_request_with_a_turn_for_itself_leaves_at_once(worker: Worker) -> None:
    worker.ask_alone()
    assert worker.transport.written.endswith(b"\r\n\r\n{}")
    assert worker.written_for == 1
    await end_of_turn()
    assert worker.written_for == 1


@pytest.mark.parametrize("how", ["end", "bytes"])
async def test_a_spoilt_idle_connection_is_not_written_to_at_once_either(worker: Worker, how: str) -> None:
    await worker.serve_one()
    await end_of_turn()
    worker.far.shutdown(socket.SHUT_WR) if how == "end" else worker.far.send(ANSWER)
    answer = worker.ask_alone()
    assert await has_head(answer) is False
    assert (worker.transport.written, worker.written_for) == (b"", 1)
    assert worker.transport.is_over


@pytest.mark.parametrize("how", ["end", "bytes"])
async def test_an_idle_connection_that_is_spoilt_meanwhile_is_not_written_to(worker: Worker, how: str) -> None:
    await worker.serve_one()
    answer = worker.ask()
    worker.far.shutdown(socket.SHUT_WR) if how == "end" else worker.far.send(ANSWER)
    await end_of_turn()
    assert await has_head(answer) is False
    assert (worker.transport.written, worker.written_for) == (b"", 1)
    assert worker.transport.is_over


async def test_bytes_that_are_read_before_the_request_was_written_answer_nothing(worker: Worker) -> None:
    await worker.serve_one()
    answer = worker.ask()
    worker.connection.data_received(ANSWER)
    assert worker.transport.is_over
    worker.connection.connection_lost(None)
    await end_of_turn()
    assert await has_head(answer) is False
    assert (worker.transport.written, worker.written_for) == (b"", 1)


async def test_a_new_connection_that_ends_at_once_is_a_lost_worker_that_was_sent_nothing(worker: Worker) -> None:
    answer = worker.ask()
    worker.connection.connection_lost(None)
    await end_of_turn()
    with pytest.raises(WorkerLost) as lost:
        await has_head(answer)
    assert lost.value.request_sent is False
    assert worker.written_for == 0


async def test_what_the_last_moment_raises_stops_the_request(worker: Worker) -> None:
    def withdraw() -> None:
        raise AttemptWithdrawn("paused")

    answer = worker.connection.start(Outgoing("POST", "http://w:1", b"/generate", [], b"{}"), withdraw)
    await end_of_turn()
    with pytest.raises(AttemptWithdrawn, match="paused"):
        await has_head(answer)
    answer.close()
    assert (worker.transport.written, worker.transport.is_over) == (b"", True)


async def test_an_answer_given_up_before_its_request_was_written_leaves_nothing_behind(worker: Worker) -> None:
    worker.ask().close()
    await end_of_turn()
    assert (worker.transport.written, worker.written_for) == (b"", 0)
    assert worker.transport.is_over


@pytest.mark.parametrize("body", [b"{}", b"x" * 200_000])
async def test_a_new_connection_that_is_closing_is_a_lost_worker_that_was_sent_nothing(
    worker: Worker, body: bytes
) -> None:
    """Its end is known, and will be told in the next turn."""
    worker.transport.abort()
    answer = worker.connection.start(Outgoing("POST", "http://w:1", b"/generate", [], body), worker.begin)
    with pytest.raises(WorkerLost) as lost:
        await has_head(answer)
    assert (lost.value.request_sent, worker.written_for, worker.transport.written) == (False, 0, b"")


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"


async def reading(worker: Worker, take: Any) -> tuple[Any, asyncio.Task[bytes]]:
    """An answer whose pieces ``take`` is given, and who waits for one of them meanwhile."""
    answer = worker.ask()
    await end_of_turn()
    worker.connection.data_received(HEAD)
    assert await has_head(answer) is True
    answer.pass_to(take)
    waits = asyncio.create_task(answer.read())
    await end_of_turn()
    return answer, waits


async def test_pieces_are_taken_as_they_come_and_who_waits_gets_the_last(worker: Worker) -> None:
    taken: list[bytes] = []
    answer, waits = await reading(worker, lambda piece: taken.append(piece) or True)
    worker.connection.data_received(b"one")
    worker.connection.data_received(b"two")
    await end_of_turn()
    assert (taken, answer.buffered, waits.done()) == ([b"one", b"two"], 0, False)
    worker.connection.data_received(b"end")
    assert await waits == b"end"
    assert await answer.read() == b""
    assert worker.released == [worker.connection]


async def test_a_piece_that_is_not_taken_is_given_to_who_waits_with_what_follows(worker: Worker) -> None:
    answer, waits = await reading(worker, lambda piece: False)
    worker.connection.data_received(b"one")
    worker.connection.data_received(b"two")
    assert await waits == b"onetwo"
    worker.connection.data_received(b"end")
    assert await answer.read() == b"end"


async def test_what_breaks_while_a_piece_is_taken_is_raised_to_who_waits(worker: Worker) -> None:
    def fail(piece: bytes) -> bool:
        raise ZeroDivisionError

    answer, waits = await reading(worker, fail)
    worker.connection.data_received(b"one")
    worker.connection.data_received(b"two")
    worker.connection.data_received(b"end")
    with pytest.raises(ZeroDivisionError):
        await waits  # not what follows the piece that was lost
    with pytest.raises(ZeroDivisionError):
        await answer.read()
    answer.close()
    assert (worker.released, worker.transport.is_over) == ([], True)


async def test_nothing_is_taken_once_who_waited_has_gone(worker: Worker) -> None:
    taken: list[bytes] = []
    answer, waits = await reading(worker, lambda piece: taken.append(piece) or True)
    waits.cancel()
    worker.connection.data_received(b"one")
    await end_of_turn()
    worker.connection.data_received(b"two")
    assert (taken, answer.buffered, waits.cancelled()) == ([], 6, True)


def test_the_first_lines_of_a_target_are_its_own_and_bounded_in_number() -> None:
    address = Address("http://w:1/prefix")
    targets = [b"/generate", *(b"/%d?a=b" % number for number in range(2 * KEPT_TARGETS)), b"/" * KEPT_TARGET_BYTES * 2]
    for target in targets * 2:
        for method in ("POST", "GET", "POST"):
            wanted = b"%b /prefix%b HTTP/1.1\r\nhost: w:1" % (method.encode(), target)
            assert address.first_lines(method, target) == wanted
    assert 0 < len(address._first_lines) <= KEPT_TARGETS
    assert max(map(len, address._first_lines)) <= KEPT_TARGET_BYTES
