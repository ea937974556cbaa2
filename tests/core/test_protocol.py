"""Requests that ask for an upgrade keep their bodies, and what follows them is read as requests."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router_core.testing import (
    Connection,
    Faults,
    RawClient,
    ScriptedRequest,
    ScriptedWorker,
    build_request,
    reply_pieces,
)

Serve = Callable[..., Awaitable[Any]]
H2C = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk")]
CHUNKED = build_request(headers=[*H2C, ("Transfer-Encoding", "chunked")], framed=False)


async def echo(request: ScriptedRequest, connection: Connection) -> bool:
    return await connection.answer(request.method.encode() + b" " + request.target + b" " + request.body)


@pytest.mark.parametrize(
    "parts",
    [
        [build_request(headers=H2C, body=b'{"text":"x"}')],
        [build_request(headers=H2C, body=b'{"text":"x"}').removesuffix(b'"x"}'), b'"x', b'"}'],
        [build_request(headers=H2C, body=b'{"text":"x"}').removesuffix(b'{"text":"x"}'), b'{"text":"x"}'],
        [CHUNKED + b'c\r\n{"text":"x"}\r\n0\r\n\r\n'],
        [CHUNKED, b'8\r\n{"text":\r\n', b'4\r\n"x"}\r\n0', b"\r\n\r\n"],
    ],
)
async def test_a_request_for_an_upgrade_keeps_its_body(serve: Serve, parts: list[bytes]) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = echo
        async with RawClient(router.port) as client:
            for part in parts[:-1]:
                await client.send(part)
                await _until_seen(router)
            await client.send(parts[-1])
            assert (await client.read_answer()).body == b'POST /generate {"text":"x"}'
            assert (await client.request("GET", "/next")).body == b"GET /next "
            assert (await client.request(headers=H2C, body=b"again")).body == b"POST /generate again"


async def _until_seen(router: Any) -> None:
    """The router runs in this loop: a few turns let it read what the kernel has."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_body_behind_a_request_for_an_upgrade_is_no_request(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = echo
        body = b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
        async with RawClient(router.port) as client:
            await client.send(build_request(headers=H2C, body=body).removesuffix(body))
            await client.send(body)
            assert (await client.read_answer()).body == b"POST /generate " + body
        assert [request.target for request in worker.requests] == [b"/generate"]


@pytest.mark.parametrize("zeros", [1, 30])
async def test_a_body_behind_an_upgrade_is_as_long_as_the_parser_says(serve: Serve, zeros: int) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, router={"max_body_bytes": 1000})
        worker.handler = echo
        body = b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
        for headers in ([], H2C):
            length = ("Content-Length", "0" * zeros + str(len(body)))
            async with RawClient(router.port) as client:
                await client.send(build_request(headers=[*headers, length], framed=False) + body)
                assert (await client.read_answer()).body == b"POST /generate " + body
                long = ("Content-Length", "0" * zeros + "1001")
                await client.send(build_request(headers=[long, ("Expect", "100-continue")], framed=False))
                assert (await client.read_answer()).status == 413
        assert [request.target for request in worker.requests] == [b"/generate"] * 2


NO_HTTP = [
    b"\x16\x03\x01\r\n\r\n",
    b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\n\r\n",
    b"A / HTTP/9.9\r\n\r\n",
]


@pytest.mark.parametrize("raw", NO_HTTP)
async def test_what_is_no_http_is_told_in_the_envelope(serve: Serve, raw: bytes) -> None:
    router = await serve()
    async with RawClient(router.port) as client:
        await client.send(raw)
        answer = await client.read_answer()
        assert (answer.status, answer.get("x-router-error"), answer.get("connection")) == (
            400,
            "malformed_request",
            "close",
        )
        assert answer.json()["error"]["message"].startswith("the request is not HTTP/1.1: ")
        assert [len(answer.values(name)) for name in ("date", "server", "content-length")] == [1, 1, 1]
        await client.wait_closed()


async def test_garbage_behind_a_request_stands_in_no_answer(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply_pieces([b"data: 1\n\n", b"data: 2\n\n"])
        worker.fault(Faults.stall_amid(after_pieces=1))
        async with RawClient(router.port) as client:
            await client.send(build_request(json={}))
            answer = await client.read_head()
            assert await client.read_piece(answer) == b"data: 1\n\n"
            await client.send(b"garbage\r\n\r\n")
            await client.read_body(answer)
            assert (answer.body, answer.clean) == (b"data: 1\n\n", False)
        await router.ends.wait()
        assert router.ends.kinds == ["client_left"]
        await worker.wait_until_idle()


async def test_garbage_before_the_answer_began_is_told_and_ends_the_request(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.fault(Faults.stall())
        async with RawClient(router.port) as client:
            await client.send(build_request(json={}))
            await worker.wait_for_requests(1)
            await client.send(b"garbage\r\n\r\n")
            assert (await client.read_answer()).status == 400
        await router.ends.wait()
        assert router.ends.kinds == ["client_left"]
        await worker.wait_until_idle()


async def test_requests_sent_behind_one_another_with_upgrades_are_answered_in_order(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = echo
        async with RawClient(router.port) as client:
            await client.send(
                build_request("GET", "/1", H2C)
                + build_request("POST", "/2", H2C, b"two")
                + build_request("GET", "/3")
                + build_request("POST", "/4", H2C, b"four")
            )
            bodies = [(await client.read_answer()).body for _ in range(4)]
            assert bodies == [b"GET /1 ", b"POST /2 two", b"GET /3 ", b"POST /4 four"]


FIELD = b"a: " + b"x" * 60 + b"\r\n"


@pytest.mark.parametrize("front", ["auto", "asgi"])
@pytest.mark.parametrize("begun", [b"GET /x HTTP/1.1\r\nhost: r\r\n", b"GET /x HTTP/1.1\r\nhost: r\r\na: ", b"GET /"])
async def test_an_endless_head_is_refused(serve: Serve, front: str, begun: bytes) -> None:
    router = await serve(router={"front": front})
    async with RawClient(router.port) as client:
        await client.send(begun)
        with contextlib.suppress(ConnectionError):
            for _ in range(300):
                await client.send(FIELD * 100 if begun.endswith(b"\n") else b"x" * 6500)
        await client.wait_closed()
    assert router.application.proxy.running == set()


async def test_heads_that_come_in_pieces_are_counted_each_alone(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router_core.protocol.MAX_HEAD_BYTES", 400)
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = echo
        asked = build_request(headers=[("x-long", "x" * 200)], body=b"y" * 1000)
        async with RawClient(router.port) as client:
            for _ in range(4):
                for part in (asked[:100], asked[100:200], asked[200:]):
                    await client.send(part)
                    await _until_seen(router)
                assert (await client.read_answer()).status == 200


@pytest.mark.parametrize("front", ["auto", "asgi"])
@pytest.mark.parametrize("upgrade", [[], H2C])
async def test_a_trailer_is_no_part_of_the_head(serve: Serve, front: str, upgrade: list[tuple[str, str]]) -> None:
    """However much of a request comes at once: the server's parser tells of both in the same way."""
    async with ScriptedWorker() as worker:
        router = await serve(worker, router={"front": front})
        worker.handler = echo
        head = build_request(headers=[*upgrade, ("Transfer-Encoding", "chunked")], framed=False)
        async with RawClient(router.port) as client:
            await client.send(head + b"1\r\nx\r\n0\r\nx-router-profile: none\r\nauthorization: Bearer x\r\n\r\n")
            assert (await client.read_answer()).body == b"POST /generate x"
        (request,) = worker.requests
        assert request.get("authorization") is None
