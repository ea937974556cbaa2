"""One request between two processes: its bytes, its breaks, and who leaves when."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_core.processes.forward import Forwarder
from router_core.processes.frames import LAST, MORE, FrameProtocol, frame
from router_core.processes.ownership import Owners
from router_core.processes.peer_server import PeerServer

Forward = Callable[..., Awaitable[list[Any]]]
SCOPE = {
    "type": "http",
    "http_version": "1.0",
    "server": ("10.0.0.1", 8000),
    "client": ("10.0.0.2", 5),
    "scheme": "http",
    "method": "POST",
    "root_path": "",
    "path": "/a b",
    "raw_path": b"/a%20b",
    "query_string": b"x=1",
    "headers": [(b"host", b"h"), (b"x-odd", b"\xff"), (b"x-odd", b"")],
    "state": {"stays": object()},
}


class Client:
    """An ASGI client: says what it is given, waits where it is told to, and notes what it gets."""

    def __init__(self, *said: Any) -> None:
        self._said = list(said)
        self.got: list[Any] = []
        self.may_leave = asyncio.Event()
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def receive(self) -> Any:
        if self._said:
            return self._said.pop(0)
        await self.may_leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.may_read.wait()
        self.got.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got)


def piece(body: bytes = b"", *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


class Owner:
    """A peer server whose app a test gives."""

    def __init__(self) -> None:
        self.app: Any = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.forwarder = Forwarder(b"secret")
        self.server = PeerServer(self._call, b"secret", self.tasks)

    async def _call(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    async def forward(self, client: Client) -> None:
        async with asyncio.timeout(30):
            await self.forwarder.forward(SCOPE, client.receive, client.send, 0)


@pytest.fixture
async def owner() -> AsyncIterator[Owner]:
    made = Owner()
    listener = socket.socket(socket.AF_UNIX)
    address = f"\0router-core-test-{secrets.token_hex(8)}"
    listener.bind(address)
    await made.server.listen(listener)
    made.forwarder.peers = [address]
    yield made
    made.server.close()
    made.forwarder.close()
    while made.tasks:
        await asyncio.wait(set(made.tasks))
    await asyncio.sleep(0)


async def read(receive: Any) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message["body"])
        more = message["more_body"]
    return b"".join(parts)


async def start(send: Any, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"x", b"\xfe"), (b"x", b"2")]})


async def test_the_owner_sees_the_request_as_it_came_and_the_client_the_answer(owner: Owner) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, await read(receive)))
        await start(send, 207)
        for part in (b"a", b"", b"b" * 300_000):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    owner.app = app
    for _ in range(3):
        client = Client(piece(b"one", more=True), piece(b"", more=True), piece(b"two" * 200_000))
        await owner.forward(client)
        scope, body = seen.pop()
        assert {key: scope[key] for key in SCOPE if key != "state"} == {k: v for k, v in SCOPE.items() if k != "state"}
        assert "state" not in scope
        assert body == b"one" + b"two" * 200_000
        assert client.got[0] == {
            "type": "http.response.start",
            "status": 207,
            "headers": [(b"x", b"\xfe"), (b"x", b"2")],
        }
        assert client.body == b"a" + b"b" * 300_000
        assert client.got[-1]["more_body"] is False


async def test_an_answer_that_breaks_off_has_no_end(owner: Owner) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    owner.app = app
    client = Client(piece())
    await owner.forward(client)
    assert [message.get("more_body") for message in client.got] == [None, True]


async def test_an_owner_that_answers_nothing_is_an_error(owner: Owner) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("a fault")

    owner.app = app
    client = Client(piece())
    await owner.forward(client)
    assert client.got[0]["status"] == 502
    assert b"owner_lost" in client.body


async def test_an_early_answer_ends_an_upload_and_spoils_the_connection_alone(owner: Owner) -> None:
    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await start(send, 413)
        await send({"type": "http.response.body", "body": b"no"})

    owner.app = refuses
    for _ in range(2):
        client = Client(piece(b"x", more=True), piece(b"y" * 100, more=True))
        await owner.forward(client)
        assert (client.got[0]["status"], client.body) == (413, b"no")


async def test_an_app_that_works_on_after_its_answer_does_not_disturb_the_next_request(owner: Owner) -> None:
    may_end, has_ended = asyncio.Event(), asyncio.Event()

    async def works_on(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await send({"type": "http.response.body", "body": await read(receive)})
        await may_end.wait()

    async def ends_the_first(scope: Any, receive: Any, send: Any) -> None:
        first = await receive()
        may_end.set()
        await asyncio.wait(owner.tasks - {asyncio.current_task()})
        await asyncio.sleep(0)
        has_ended.set()
        await start(send)
        await send({"type": "http.response.body", "body": first["body"] + await read(receive)})

    class Slow(Client):
        async def receive(self) -> Any:
            if len(self._said) == 1:
                await has_ended.wait()
            return await super().receive()

    owner.app = works_on
    client = Client(piece(b"first"))
    await owner.forward(client)
    owner.app = ends_the_first
    slow = Slow(piece(b"sec", more=True), piece(b"ond"))
    await owner.forward(slow)
    assert (client.body, slow.body) == (b"first", b"second")


async def test_a_client_that_leaves_is_seen_to_leave(owner: Owner) -> None:
    seen: list[str] = []
    begun = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        begun.set()
        seen.append((await receive())["type"])

    owner.app = app
    client = Client(piece(b"x"))
    forwarding = asyncio.create_task(owner.forward(client))
    await begun.wait()
    client.may_leave.set()
    await forwarding
    await asyncio.wait(set(owner.tasks) or {forwarding})
    assert (seen, client.got) == (["http.disconnect"], [])


async def test_a_client_that_does_not_read_holds_the_owner_back(owner: Owner) -> None:
    sent = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await start(send)
        for _ in range(200):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
            sent += 1
        await send({"type": "http.response.body"})

    owner.app = app
    client = Client(piece())
    client.may_read.clear()
    forwarding = asyncio.create_task(owner.forward(client))
    before = -1
    while sent != before or not sent:
        before = sent
        await asyncio.sleep(0.05)  # until no more goes out: nobody tells that
    assert sent < 50
    client.may_read.set()
    await forwarding
    assert len(client.body) == 20_000_000


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 9))
def test_frames_come_out_as_they_went_in_however_they_are_cut(contents: list[bytes], step: int) -> None:
    taken: list[tuple[int, bytes]] = []

    class Taking(FrameProtocol):
        def take(self, kind: int, content: bytes) -> None:
            taken.append((kind, content))

    kinds = [LAST if at % 2 else MORE for at in range(len(contents))]
    raw = b"".join(frame(kind, content) for kind, content in zip(kinds, contents, strict=True))
    protocol = Taking()
    for at in range(0, len(raw), step):
        protocol.data_received(raw[at : at + step])
    assert taken == list(zip(kinds, contents, strict=True))


def test_sessions_are_spread_evenly_and_ids_that_are_made_are_our_own() -> None:
    owners = [Owners(3, slot) for slot in range(3)]
    slots = [owners[0].slot_of(f"session-{number}") for number in range(3000)]
    assert all(slots.count(slot) > 900 for slot in range(3))
    assert all(owners[slot].is_ours(owners[slot].new_id()) for slot in range(3))
