"""A connection goes to the process that owns the session of its next request, and nothing of it is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes_kit import Connect, children_of, ids_of, until

from router_core.processes.first_bytes import SessionFields
from router_core.processes.handing import MAX_BYTES, Gate, Handing, make_pair
from router_core.testing import RawClient, ScriptedWorker
from router_core.testing.answer import build_request

ASK = {"text": "hi"}
NAMES = SessionFields(("x-session-id", "x-other"))


def holders_of(client: RawClient, pids: Sequence[int]) -> list[int]:
    """Which of the processes hold the other end of a connection."""
    port = client._wire._transport.get_extra_info("sockname")[1]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = [f"0100007F:{client.port:04X}", f"0100007F:{port:04X}"]
    inode = next(row[9] for row in rows if row[1:3] == ends)
    return [pid for pid in pids if f"socket:[{inode}]" in _links_of(pid)]


async def until_held_by(client: RawClient, pids: Sequence[int], holder: int) -> None:
    """The one that gave a connection away closes its end when the other may have answered already."""
    await until(lambda: holders_of(client, pids) == [holder])


def _links_of(pid: int) -> set[str]:
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        if fd.is_symlink():
            found.add(str(fd.readlink()))
    return found


@pytest.mark.parametrize("front", ["auto", "asgi"])
async def test_a_connection_goes_to_the_owner_of_the_session_that_is_asked_for(
    start_two: Any, connect: Connect, front: str
) -> None:
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url, "--set", f"front={front}")
        pids = children_of(router.pid)
        for client in await connect(router.port, 6):
            for slot in (0, 0, 1, 0, 1, 1):
                body = {"text": f"hi {slot}"}
                answer = await client.request(json=body, headers=[("x-session-id", ids_of(slot, 1)[0])])
                assert (answer.status, worker.requests[-1].json()) == (200, body)
                await until_held_by(client, pids, pids[slot])
            assert (await client.request(json=ASK)).status == 200  # nobody's: it stays
            await until_held_by(client, pids, pids[1])


@pytest.mark.parametrize("front", ["auto", "asgi"])
async def test_the_rest_of_a_body_that_was_answered_early_is_no_request(
    start_two: Any, connect: Connect, front: str
) -> None:
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url, "--set", f"front={front}", "--set", "max_body_bytes=5000")
        hidden = build_request("POST", "/hidden", [("x-session-id", ids_of(0, 1)[0])], json=ASK, host="h")
        hidden += build_request("POST", "/hidden", [("x-session-id", ids_of(1, 1)[0])], json=ASK, host="h")
        whole = build_request("POST", "/generate", (), b"x" * 6000 + hidden, host="h")
        for client in await connect(router.port, 6):
            await client.send(whole[:300])
            assert (await client.read_answer()).status == 413
            try:
                await client.send(whole[300 : -len(hidden)])
                await asyncio.sleep(0.02)  # so that the rest comes by itself
                await client.send(hidden)
                answer = await client.request(json=ASK)
            except ConnectionError:
                continue  # closed, which is as good
            assert answer.status == 200
        assert "/hidden" not in [request.path for request in worker.requests]


async def test_who_opens_a_session_by_its_id_and_goes_on_with_it_is_at_its_owner(
    start_two: Any, connect: Connect
) -> None:
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url)
        pids = children_of(router.pid)
        clients = await connect(router.port, 10)
        for client, session_id in zip(clients, ids_of(0, 5) + ids_of(1, 5), strict=True):
            opened = await client.request(target="/sessions", json={"session_id": session_id})
            base = f"http://127.0.0.1:{router.port}/sessions/{session_id}/v1"
            assert (opened.status, opened.json()["base_url"]) == (200, base)
            assert (await client.request(target=f"/sessions/{session_id}/generate", json=ASK)).status == 200
            assert (await client.request("GET", f"/sessions/{session_id}")).json()["session_id"] == session_id
            await until_held_by(client, pids, pids[session_id in ids_of(1, 5)])


async def test_what_comes_in_pieces_at_once_or_in_plenty_is_served_whole(start_two: Any, connect: Connect) -> None:
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url, "--set", "enabled=[]")
        for session_id in ids_of(0, 1) + ids_of(1, 1):
            named = [("x-session-id", session_id)]

            def asked(text: str, named: Any = named) -> bytes:
                return build_request("POST", "/generate", named, json={"text": text}, host="h")

            for client in await connect(router.port, 4):
                body = asked("x" * 300_000)
                await client.send(body[:60_000])  # the head, and some of the body
                await client.send(body[60_000:])
                assert (await client.read_answer()).status == 200
                assert worker.requests[-1].json() == {"text": "x" * 300_000}
            for client in await connect(router.port, 4):  # two in one piece, the second of them another session's
                await client.send(asked("one") + asked("two", [("x-session-id", ids_of(0, 2)[1])]))
                assert [(await client.read_answer()).status for _ in range(2)] == [200, 200]
                assert [request.json()["text"] for request in worker.requests[-2:]] == ["one", "two"]
            for client in await connect(router.port, 4):  # a head that is not whole stays where it came
                whole = asked("slow")
                await client.send(whole[:30])
                await asyncio.sleep(0.02)
                await client.send(whole[30:])
                assert (await client.read_answer()).status == 200
                assert worker.requests[-1].json() == {"text": "slow"}


async def test_connections_that_a_lost_process_had_not_taken_are_its_successors(
    start_two: Any, connect: Connect
) -> None:
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url, "--set", "process_timeout_s=0")
        first, other = children_of(router.pid)
        os.kill(first, signal.SIGSTOP)
        named = [("x-session-id", ids_of(0, 1)[0])]
        clients = await connect(router.port)
        asked = [asyncio.create_task(client.request(json=ASK, headers=named, timeout_s=60)) for client in clients]
        await until(lambda: not any(holders_of(client, [other]) for client in clients))  # none is left with the other
        os.kill(first, signal.SIGKILL)
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        (second,) = set(children_of(router.pid)) - {other}
        assert [holders_of(client, [second, other]) for client in clients] == [[second]] * len(clients)


async def test_connections_that_are_handed_over_when_the_end_comes_are_answered(
    start_two: Any, connect: Connect
) -> None:
    async with ScriptedWorker() as worker:
        router = await start_two("--worker", worker.url)
        clients = await connect(router.port)
        worker.hold()
        asked = [
            asyncio.create_task(client.request(json=ASK, headers=[("x-session-id", f"s{at}")], timeout_s=60))
            for at, client in enumerate(clients)
        ]
        await worker.wait_for_requests(len(clients))
        router.signal(signal.SIGTERM)
        worker.release()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        status, told = await router.wait()
        assert (status, "requests are cut" in told) == (0, False)


# ----------------------------------------------------------------------------------------------- one process's own part
class Server:
    """A server's protocol that notes what comes."""

    def __init__(self) -> None:
        self.got = b""
        self.is_told_to_end = False
        self.has_come = asyncio.Event()
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.has_come.set()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Exception | None) -> None:
        self.has_come.set()

    def shutdown(self) -> None:
        self.is_told_to_end = True

    def is_between_requests(self) -> bool:
        return not self.got


class Two:
    """Two processes' parts in one: every connection to ``port`` comes to the first, and belongs to the second."""

    def __init__(self) -> None:
        pairs = [make_pair(), make_pair()]
        self.sockets = [end for pair in pairs for end in pair]
        giving = [pair[1] for pair in pairs]
        self.first = Handing(pairs[0][0], giving, lambda data: 1)
        self.second = Handing(pairs[1][0], giving, lambda data: None)
        self.stayed: list[Server] = []
        self.taken: list[Server] = []
        self.tasks: set[asyncio.Task[Any]] = set()

    def _make(self, made: list[Server]) -> Server:
        made.append(Server())
        return made[-1]

    async def open(self) -> None:
        self.first.open(lambda: self._make(self.stayed), self.tasks)
        self.second.open(lambda: self._make(self.taken), self.tasks)
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: Gate(self._make(self.stayed), self.first), "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    async def settle(self) -> None:
        while self.tasks:
            await asyncio.wait(set(self.tasks))
        await asyncio.sleep(0)


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    made = Two()
    await made.open()
    yield made
    made.server.close()
    made.first.close()
    made.second.close()
    await made.settle()
    for protocol in (*made.stayed, *made.taken):
        if protocol.transport is not None:
            protocol.transport.abort()
    for end in made.sockets:
        end.close()
    await asyncio.sleep(0)


async def test_a_connection_goes_with_what_was_read_and_the_client_notices_nothing(two: Two) -> None:
    async with RawClient(two.port) as client:
        await client.send(b"first")
        async with asyncio.timeout(10):
            while not two.taken:  # noqa: ASYNC110  # it comes from the kernel
                await asyncio.sleep(0)
            await two.taken[0].has_come.wait()
        assert (two.taken[0].got, two.stayed[0].got) == (b"first", b"")
        two.taken[0].has_come.clear()
        await client.send(b" and second")
        await two.taken[0].has_come.wait()
        assert two.taken[0].got == b"first and second"
        two.taken[0].transport.write(b"answer")
        assert await client._wire.read_some() == b"answer"


@pytest.mark.parametrize("why", ["large", "full", "closed"])
async def test_where_it_cannot_be_handed_over_it_stays(two: Two, why: str) -> None:
    data = b"x" * (MAX_BYTES + 1 if why == "large" else 100)
    if why == "closed":
        two.first.close()
    if why == "full":
        asyncio.get_running_loop().remove_reader(two.second._taking)
        with pytest.raises(BlockingIOError):
            while True:
                two.first._giving[1].send(b"x" * MAX_BYTES)
    async with RawClient(two.port) as client:
        transport = (await _until_made(two)).transport
        assert two.first.give(transport, data) is False
        await client.send(data)
        async with asyncio.timeout(10):
            await two.stayed[0].has_come.wait()
        assert data.startswith(two.stayed[0].got[:100])
        assert two.taken == []
    if why == "full":
        while True:
            try:
                two.second._taking.recv(MAX_BYTES)
            except BlockingIOError:
                break


async def _until_made(two: Two) -> Server:
    async with asyncio.timeout(10):
        while not two.stayed or two.stayed[0].transport is None:  # noqa: ASYNC110  # it comes from the kernel
            await asyncio.sleep(0)
    return two.stayed[0]


async def test_what_was_given_before_the_end_is_taken_and_told_to_end(two: Two) -> None:
    asyncio.get_running_loop().remove_reader(two.second._taking)
    async with RawClient(two.port) as client:
        transport = (await _until_made(two)).transport
        assert two.first.give(transport, b"last")
        two.second.close()
        await two.settle()
        await two.taken[0].has_come.wait()
        assert (two.taken[0].got, two.taken[0].is_told_to_end) == (b"last", True)
        assert client.port


async def test_a_connection_that_ends_on_its_way_disturbs_nobody(two: Two) -> None:
    asyncio.get_running_loop().remove_reader(two.second._taking)
    async with RawClient(two.port) as client:
        transport = (await _until_made(two)).transport
        assert two.first.give(transport, b"gone")
        client._wire.reset()
    two.second._take(1)
    await two.settle()
    ours, theirs = socket.socketpair()
    socket.send_fds(two.first._giving[1], [b"x"], [])  # nor does a message without a socket
    two.second._take(1)
    for end in (ours, theirs):
        end.close()


@given(st.binary(max_size=200))
def test_any_bytes_may_begin_a_request(data: bytes) -> None:
    NAMES.session_of(data + b"\r\n\r\n{")
    NAMES.session_of(b"POST /sessions" + data + b"\r\n\r\n{")


@pytest.mark.parametrize(
    ("raw", "session_id"),
    [
        (b"POST /generate HTTP/1.1\r\nHost: h\r\nX-Session-ID: \t a b \r\nx: y\r\n\r\n", "a b"),
        (b"POST /generate HTTP/1.1\r\nx-other: b\r\nx-session-id:a\r\n\r\n", "a"),
        (b"POST /generate HTTP/1.1\r\nx-other: b\r\n\r\nx-session-id: a\r\n\r\n", "b"),
        (b"POST /generate HTTP/1.1\r\nnot-x-session-id: a\r\n\r\n", None),
        (b"POST /generate HTTP/1.1\r\nx-session-id: a\r\n", None),
        (b"GET /sessions/a%20b?x=1 HTTP/1.1\r\nx-session-id: c\r\n\r\n", "a b"),
        (b"POST /sessions/a/generate HTTP/1.1\r\n\r\n", "a"),
        (b"GET /sessions HTTP/1.1\r\n\r\n", None),
        (b'POST /sessions HTTP/1.1\r\n\r\n{"session_id": "a"}', "a"),
        (b'POST /sessions HTTP/1.1\r\n\r\n{"session_id": "a', None),
        (b"\r\n\r\n", None),
    ],
)
def test_a_session_is_read_from_the_first_bytes_of_a_request(raw: bytes, session_id: str | None) -> None:
    assert NAMES.session_of(raw) == session_id
