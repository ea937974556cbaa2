"""The front without ASGI: the same answers as with it, and what only a connection of our own can get wrong."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router_core import Answer, Exchange, OutcomeKind, hookimpl
from router_core.fast_front import FastProtocol
from router_core.testing import Faults, RawClient, ScriptedWorker, build_request, reply, reply_pieces

Serve = Callable[..., Awaitable[Any]]
FRONTS = pytest.mark.parametrize("front", ["auto", "asgi"])


@FRONTS
async def test_requests_sent_together_are_answered_in_order(serve: Serve, front: str) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, router={"front": front})
        worker.fault(Faults.delay(0.05))  # the first answer comes last
        asked = [
            build_request(json={"text": "1"}),
            build_request("GET", "/health"),
            build_request(json={"text": "2"}),
            build_request("GET", "/workers"),
            build_request(json={"text": "3"}),
        ]
        async with RawClient(router.port) as client:
            await client.send(b"".join(asked))
            answers = [await client.read_answer() for _ in asked]
        assert [answer.status for answer in answers] == [200] * 5
        assert json.loads(answers[3].body)["workers"][0]["url"] == worker.url
        assert [json.loads(request.body)["text"] for request in worker.requests] == ["1", "2", "3"]


async def test_a_client_that_leaves_with_requests_waiting_behind_one(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.fault(Faults.stall())
        async with RawClient(router.port) as client:
            await client.send(build_request(json={"text": "1"}) + build_request(json={"text": "2"}))
            (request,) = await worker.wait_for_requests(1)
            client.leave()
            assert await request.connection.wait_for_leave(timeout_s=3.0)
        await router.settle()
        assert router.ends.outcomes[0].kind is OutcomeKind.CLIENT_LEFT
        assert len(worker.requests) == 1


@FRONTS
@pytest.mark.parametrize("name", ["connection", "proxy-connection"])
async def test_a_client_that_knows_no_chunks_gets_none_though_it_wants_to_stay(
    serve: Serve, front: str, name: str
) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, router={"front": front})
        worker.handler = reply_pieces([b"hel", b"lo"])
        async with RawClient(router.port) as client:
            await client.send(f"GET /x HTTP/1.0\r\n{name}: keep-alive\r\n\r\n".encode())
            answer = await client.read_answer()
            assert answer.body == b"hello"
            assert (answer.get("transfer-encoding"), answer.get("connection")) == (None, "close")


@FRONTS
@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 64 * 1024 + 1, 300_000, 3_000_000])
async def test_bodies_of_every_size_pass_both_ways(serve: Serve, front: str, size: int) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, router={"front": front})
        worker.handler = reply(body=b"a" * size)
        async with RawClient(router.port) as client:
            for _ in range(2):
                answer = await client.request(body=b"q" * size)
                assert (answer.status, len(answer.body), answer.clean) == (200, size, True)
        assert [len(request.body) for request in worker.requests] == [size, size]


@FRONTS
@pytest.mark.parametrize("pause_after", [0, 1, 40])
async def test_a_body_may_come_long_after_its_head(serve: Serve, front: str, pause_after: int) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, router={"front": front})
        worker.handler = reply()
        asked = build_request(body=b"x" * 50)
        cut = asked.index(b"\r\n\r\n") + 4 + pause_after
        async with RawClient(router.port) as client:
            await client.send(asked[:cut])
            await asyncio.sleep(0.05)
            await client.send(asked[cut:])
            assert (await client.read_answer()).status == 200
        assert worker.requests[0].body == b"x" * 50


async def test_a_middleware_selects_the_other_front(serve: Serve) -> None:
    class Through:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.app(scope, receive, send)

    assert (await serve()).application.is_fast
    assert not (await serve(router={"front": "asgi"})).application.is_fast
    assert not (await serve(classes=(Through,))).application.is_fast


async def test_an_exchange_that_is_cancelled_unanswered_closes_its_connection(serve: Serve) -> None:
    class Cancels:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> Answer | None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1.0)
            return None

    router = await serve(classes=(Cancels,))
    async with RawClient(router.port) as client:
        await client.send(build_request(json={}))
        await client.wait_closed(timeout_s=2.0)


async def test_an_idle_connection_is_closed_after_its_time(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router_core.server.KEEP_ALIVE_S", 1)
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply()
        loop = asyncio.get_running_loop()
        async with RawClient(router.port) as client:
            for _ in range(3):
                assert (await client.request(json={})).status == 200
                await asyncio.sleep(0.1)  # less than its time: the connection stays
            since = loop.time()
            await client.wait_closed(timeout_s=3.0)
            assert loop.time() - since > 0.05


async def test_uvicorn_asks_a_cycle_for_nothing_else() -> None:
    """What uvicorn's protocol reads from its current cycle `FastCycle` has: one that wants more shows here."""
    import inspect
    import re

    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    from router_core.fast_cycle import FastCycle

    inherited = [
        getattr(HttpToolsProtocol, name)
        for name in ("connection_lost", "shutdown", "timeout_keep_alive_handler", "connection_made", "eof_received")
        if name not in vars(FastProtocol) or name == "connection_lost"
    ]
    asked = {name for method in inherited for name in re.findall(r"self\.cycle\.(\w+)", inspect.getsource(method))}
    assert asked, "nothing found: the pattern no longer fits"
    assert asked <= {*dir(FastCycle)}
