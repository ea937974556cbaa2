"""Clients that send more than they read, in pieces that nobody expects."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router_core.build import build_name
from router_core.fast_cycle import FastCycle
from router_core.fast_front import FastProtocol
from router_core.testing import (
    Faults,
    RawClient,
    ScriptedWorker,
    build_request,
    reply,
    reply_pieces,
)

Serve = Callable[..., Awaitable[Any]]
FRONTS = pytest.mark.parametrize("front", ["auto", "asgi"])


@FRONTS
async def test_a_client_that_reads_no_answer_gets_no_more_requests_served(serve: Serve, front: str) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, router={"front": front})
        worker.handler = reply(body=b"a" * 200_000)
        async with RawClient(router.port, receive_buffer_bytes=4096) as client:
            client.hold_reading()
            await client.send(build_request("GET", "/x") * 100)
            served = -1
            while served < len(worker.requests):
                served = len(worker.requests)
                await asyncio.sleep(0.2)
            assert served < 80, "the rest of 20 MB is in the router's memory"
            client.resume_reading()
            for _ in range(100):
                assert len((await client.read_answer()).body) == 200_000


@FRONTS
@pytest.mark.parametrize("behind", ["/next", "/health"])
async def test_garbage_behind_two_requests_stands_in_no_answer(serve: Serve, front: str, behind: str) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, router={"front": front})
        worker.handler = reply_pieces([b"data: 1\n\n", b"data: 2\n\n"])
        worker.fault(Faults.stall_amid(after_pieces=1))
        async with RawClient(router.port) as client:
            await client.send(build_request(json={}))
            answer = await client.read_head()
            assert await client.read_piece(answer) == b"data: 1\n\n"
            await client.send(build_request("GET", behind) + b"garbage\r\n\r\n")
            await client.read_body(answer)
            assert (answer.body, answer.clean) == (b"data: 1\n\n", False)


@FRONTS
@pytest.mark.parametrize("behind", ["/next", "/health"])
async def test_a_client_that_leaves_with_any_request_waiting_is_noticed(serve: Serve, front: str, behind: str) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, router={"front": front})
        worker.fault(Faults.stall())
        async with RawClient(router.port) as client:
            await client.send(build_request(json={"text": "1"}) + build_request("GET", behind))
            (request,) = await worker.wait_for_requests(1)
            client.leave()
            assert await request.connection.wait_for_leave(timeout_s=3.0)
        await router.settle()


async def test_many_requests_sent_together_are_looked_after_by_one_timer(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[FastProtocol] = []
    look = FastProtocol._look_whether_left

    def counted(self: FastProtocol) -> None:
        looked.append(self)
        look(self)

    monkeypatch.setattr("router_core.protocol.FULL_S", 0.05)
    monkeypatch.setattr(FastProtocol, "_look_whether_left", counted)
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        worker.hold()
        async with RawClient(router.port) as client:
            await client.send(build_request("GET", "/x") * 500)
            await worker.wait_for_requests(1)
            await asyncio.sleep(0.2)
            assert 1 <= len(looked) < 50
            worker.release()
            for _ in range(500):
                assert (await client.read_answer()).status == 200


async def test_a_worker_lost_amid_an_upload_leaves_no_task_behind(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        async with RawClient(router.port) as client:
            await client.send(build_request(headers=[("Transfer-Encoding", "chunked")], framed=False) + b"1\r\nx\r\n")
            await worker.wait_until(lambda: bool(worker.connections))
            worker.connections[0].reset()
            assert (await client.read_answer()).status == 502
            await router.ends.wait()
            await asyncio.sleep(0)
            assert [task for task in asyncio.all_tasks() if task.get_name() == "upload"] == []


@pytest.mark.skipif(build_name() == "compiled", reason="compiled code does not ask a kind of bytes for its length")
def test_early_pieces_of_a_body_are_counted_once() -> None:
    """A body of one-byte chunks in one segment is some 40,000 of them."""

    class Piece(bytes):
        counted = 0

        def __len__(self) -> int:
            Piece.counted += 1
            return super().__len__()

    class Parser:
        def get_method(self) -> bytes:
            return b"POST"

        def get_http_version(self) -> str:
            return "1.1"

        def should_keep_alive(self) -> bool:
            return True

    class Connection:
        parser, headers, scheme, client, transport, flow = Parser(), [], "http", None, None, None
        expect_100_continue = False

    cycle = FastCycle(Connection(), b"/x", b"", None)  # type: ignore[arg-type]  # all that is asked of it here
    for _ in range(100):
        cycle.take_in(Piece(b"x"))
    assert Piece.counted == 100


async def test_a_body_in_an_answer_to_head_spoils_its_connection(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.fault(Faults.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe", keep_open=True))
        async with RawClient(router.port) as client:
            await client.send(build_request("HEAD", "/x"))
            assert (await client.read_answer("HEAD")).status == 200
            worker.handler = reply(body=b"right")
            assert (await client.request("GET", "/x")).body == b"right"
        assert len(worker.connections) == 2


async def test_a_connection_is_not_idle_while_a_head_is_coming(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router_core.server.KEEP_ALIVE_S", 1)
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        asked = build_request(json={})
        async with RawClient(router.port) as client:
            assert (await client.request(json={})).status == 200
            await client.send(asked[:20])
            await asyncio.sleep(1.2)
            await client.send(asked[20:])
            assert (await client.read_answer()).status == 200
            await client.wait_closed(timeout_s=3.0)
