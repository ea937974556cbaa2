"""Clients that leave at every stage, uploads that wait, and their bounds."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from starlette.middleware.base import BaseHTTPMiddleware

from router_core import Answer, ClientLeft, Exchange, OutcomeKind, Reject, hookimpl
from router_core.asgi_inbound import AsgiInbound
from router_core.testing import (
    Connection,
    Faults,
    RawClient,
    ScriptedRequest,
    ScriptedWorker,
    build_request,
    exchange_once,
    reply,
)
from router_core.upload import Upload

Serve = Callable[..., Awaitable[Any]]
LEAVE = pytest.mark.parametrize("leave", ["close", "reset", "half-close"])


class Through(BaseHTTPMiddleware):
    """Passes everything on, as a user's middleware does."""

    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


def leave_by(client: RawClient, how: str) -> None:
    {"close": client.leave, "reset": client.reset, "half-close": client.end_sending}[how]()


WITH = pytest.mark.parametrize("middlewares", [(), (Through,)], ids=["bare", "BaseHTTPMiddleware"])


# ------------------------------------------------------------------------------------------------------ clients leave
@LEAVE
@WITH
async def test_a_client_that_leaves_before_the_answer_frees_its_worker(
    serve: Serve, leave: str, middlewares: Any
) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=middlewares)
        worker.fault(Faults.stall())
        async with RawClient(router.port) as client:
            await client.send(build_request(json={"text": "long"}))
            (request,) = await worker.wait_for_requests(1)
            leave_by(client, leave)
            assert await request.connection.wait_for_leave(timeout_s=1.0)
        (outcome,) = await router.ends.wait()
        assert outcome.kind is OutcomeKind.CLIENT_LEFT
        assert router.ends.inflight == [0]
        attempt = router.ends.exchanges[0].attempts[0]
        assert (attempt.outcome.kind, attempt.request_sent) == (OutcomeKind.CLIENT_LEFT, True)


@LEAVE
@WITH
async def test_a_client_that_leaves_a_silent_stream_frees_its_worker(
    serve: Serve, leave: str, middlewares: Any
) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=middlewares)
        worker.fault(Faults.stall_amid(after_pieces=1))
        async with RawClient(router.port) as client:
            await client.send(build_request(json={"text": "long", "stream": True}))
            answer = await client.read_head()
            assert await client.read_piece(answer)
            leave_by(client, leave)
            assert await worker.requests[0].connection.wait_for_leave(timeout_s=1.0)
        (outcome,) = await router.ends.wait()
        assert outcome.kind is OutcomeKind.CLIENT_LEFT
        assert router.ends.exchanges[0].attempts[0].outcome.kind is OutcomeKind.CLIENT_LEFT


async def busy(request: ScriptedRequest, connection: Connection) -> bool:
    """Sends without end."""
    await connection.begin()
    try:
        while True:
            await connection.write(b"data: " + b"x" * 1000 + b"\n\n")
    except ConnectionResetError:
        return False


@LEAVE
@WITH
async def test_a_client_that_leaves_a_busy_stream_frees_its_worker(serve: Serve, leave: str, middlewares: Any) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=middlewares)
        worker.handler = busy
        async with RawClient(router.port) as client:
            await client.send(build_request(json={"stream": True}))
            answer = await client.read_head()
            assert await client.read_piece(answer)
            client.hold_reading()
            leave_by(client, leave)
        await worker.wait_until_idle(timeout_s=2.0)
        (outcome,) = await router.ends.wait()
        assert outcome.kind is OutcomeKind.CLIENT_LEFT


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_client_that_leaves_amid_its_upload_frees_its_worker(serve: Serve, framing: str) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        async with RawClient(router.port) as client:
            if framing == "length":
                await client.send(build_request(body=b"x" * 100_000)[:50_000])
            else:
                fields = [("Transfer-Encoding", "chunked")]
                await client.send(build_request(headers=fields, framed=False), b"5\r\nhello\r\n")
            await worker.wait_until(lambda: bool(worker.requests))
            client.leave()
        await worker.wait_until_idle(timeout_s=1.0)
        assert worker.requests[0].clean is False
        await router.ends.wait()
        assert router.ends.kinds == ["client_left"]


async def test_a_client_that_leaves_before_its_body_came_reaches_no_worker(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        async with RawClient(router.port) as client:
            await client.send(build_request(body=b"x" * 10)[:-10])
            while not router.application.proxy.running:  # noqa: ASYNC110  # no event tells of a request half read
                await asyncio.sleep(0)
            client.leave()
        await router.ends.wait()
        assert router.ends.kinds == ["client_left"]
        assert worker.requests == []


def holding(hook: str, entered: asyncio.Event, left: asyncio.Event) -> type[Any]:
    """A plugin that holds each request in one hook."""

    async def hold() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    class Holding:
        if hook == "request_start":

            @hookimpl
            async def request_start(self) -> None:
                await hold()

        elif hook == "around_upstream":

            @hookimpl
            async def around_upstream(self, exchange: Exchange, call_next: Any) -> Answer:
                await hold()
                return await call_next(exchange)

        elif hook == "attempt_start":

            @hookimpl
            async def attempt_start(self) -> None:
                await hold()

        elif hook == "response_start":

            @hookimpl
            async def response_start(self) -> None:
                await hold()

        else:

            @hookimpl
            async def around_upstream(self, exchange: Exchange, call_next: Any) -> Answer:
                answer = await call_next(exchange)

                async def wrapped(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
                    async for chunk in chunks:
                        yield chunk
                        await hold()

                answer.chunks = wrapped(answer.chunks)
                return answer

    return Holding


@pytest.mark.parametrize("hook", ["request_start", "around_upstream", "attempt_start", "response_start", "chunks"])
@pytest.mark.parametrize("body", [b'{"text":"x"}', b"x" * 300_000], ids=["short", "long"])
async def test_a_client_that_leaves_while_a_plugin_holds_its_request_is_noticed(
    serve: Serve, hook: str, body: bytes
) -> None:
    async with ScriptedWorker() as worker:
        entered, left = asyncio.Event(), asyncio.Event()
        router = await serve(worker, classes=(holding(hook, entered, left),))
        worker.handler = reply(b"answer")
        async with RawClient(router.port) as client:
            await client.send(build_request(body=body))
            async with asyncio.timeout(5):
                await entered.wait()
            client.leave()
            async with asyncio.timeout(1):
                await left.wait()
        (outcome,) = await router.ends.wait()
        assert outcome.kind is OutcomeKind.CLIENT_LEFT
        await worker.wait_until_idle(timeout_s=1.0)


@pytest.mark.parametrize("times", [1, 3])
async def test_a_plugin_that_swallows_its_cancellation_is_cancelled_again(serve: Serve, times: int) -> None:
    entered = asyncio.Event()
    swallowed: list[int] = []

    class Stubborn:
        @hookimpl
        async def around_upstream(self, exchange: Exchange, call_next: Any) -> Answer:
            for turn in range(times):
                entered.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    swallowed.append(turn)
            return await call_next(exchange)

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Stubborn,))
        async with RawClient(router.port) as client:
            await client.send(build_request(json={}))
            await entered.wait()
            client.leave()
        await router.ends.wait()
        assert router.ends.kinds == ["client_left"]
        assert swallowed == list(range(times))
        assert worker.requests == []


async def test_many_clients_that_leave_at_once_leave_nothing_behind(serve: Serve) -> None:
    async with ScriptedWorker() as first, ScriptedWorker() as second:
        router = await serve(first, second, enabled=("least_inflight",))
        for worker in (first, second):
            worker.hold()
        clients = [RawClient(router.port) for _ in range(40)]
        for client in clients:
            await client.__aenter__()
            await client.send(build_request(json={"text": "x"}))
        await first.wait_for_requests(20)
        await second.wait_for_requests(20)
        for client in clients[::2]:
            client.leave()
        await router.ends.wait(20)
        for worker in (first, second):
            worker.release()
        statuses = [(await client.read_answer()).status for client in clients[1::2]]
        assert statuses == [200] * 20
        await router.settle()
        for client in clients:
            await client.__aexit__(None, None, None)


# ------------------------------------------------------------------------------------------------------------- bounds
async def test_a_declared_length_above_the_bound_is_refused_before_a_worker_is_asked(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, router={"max_body_bytes": 1000})
        answer = await exchange_once(router.port, body=b"x" * 1001)
        assert (answer.status, answer.get("x-router-error")) == (413, "body_too_large")
        assert "router.max_body_bytes" in answer.json()["error"]["message"]
        assert worker.requests == []
        worker.handler = reply()
        assert (await exchange_once(router.port, body=b"x" * 1000)).status == 200


async def test_a_chunked_body_above_the_bound_is_refused_amid_the_upload(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, router={"max_body_bytes": 1000})
        async with RawClient(router.port) as client:
            await client.send(build_request(headers=[("Transfer-Encoding", "chunked")], framed=False))
            await client.send(b"10\r\n" + b"x" * 16 + b"\r\n")
            await worker.wait_until(lambda: bool(worker.requests))
            await client.send(b"400\r\n" + b"x" * 1024 + b"\r\n")
            answer = await client.read_answer()
            assert (answer.status, answer.get("x-router-error")) == (413, "body_too_large")
        await router.ends.wait()
        assert router.ends.kinds == ["rejected"]
        await worker.wait_until_idle()
        assert worker.requests[0].clean is False


async def test_a_held_body_above_its_bound_is_refused(serve: Serve) -> None:
    entered, left = asyncio.Event(), asyncio.Event()
    router = await serve(classes=(holding("request_start", entered, left),), router={"max_held_body_bytes": 100_000})
    answer = await exchange_once(router.port, body=b"x" * 1_000_000)
    assert (answer.status, answer.get("x-router-error")) == (413, "held_body_too_large")
    assert "router.max_held_body_bytes" in answer.json()["error"]["message"]
    assert left.is_set()


async def test_a_body_read_by_a_hook_may_be_longer_than_a_held_one(serve: Serve) -> None:
    class Reads:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> None:
            assert len(await exchange.request.body()) == 1_000_000

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Reads,), router={"max_held_body_bytes": 100_000})
        worker.handler = reply()
        assert (await exchange_once(router.port, body=b"x" * 1_000_000)).status == 200
        assert worker.requests[0].body == b"x" * 1_000_000


# ------------------------------------------------------------------------------------------------------ the pump alone
class Scripted:
    """A `receive` that gives what it is told, and counts."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)
        self.taken = 0
        self.more = asyncio.Event()

    async def __call__(self) -> dict[str, Any]:
        while not self.messages:
            self.more.clear()
            await self.more.wait()
        self.taken += 1
        return self.messages.pop(0)


def piece(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def upload_of(**more: Any) -> Upload:
    options = {"length": None, "is_declared": True, "max_body_bytes": 1 << 20, "max_held_bytes": 1 << 20, **more}
    return Upload(**options)


async def opened(receive: Scripted, told: list[Any], **more: Any) -> tuple[Upload, AsgiInbound]:
    scope = {"method": "POST", "query_string": b"", "headers": [], "http_version": "1.1", "scheme": "http"}

    async def send(message: Any) -> None:
        raise AssertionError(f"nothing is sent: {message}")

    inbound, upload = AsgiInbound(scope, receive, send, b"/generate"), upload_of(**more)
    await inbound.open(upload, told.append)
    return upload, inbound


async def test_the_body_is_whole_once_it_came() -> None:
    receive = Scripted(piece(b"a"), piece(b""), piece(b"b", more=False))
    upload, inbound = await opened(receive, [])
    assert upload.whole is None
    assert await upload.read_all() == b"ab"
    assert (upload.whole, await upload.read_all()) == (b"ab", b"ab")
    inbound.close()


async def test_a_body_that_came_whole_is_read_or_streamed() -> None:
    upload = upload_of()
    upload.put_whole(b"ab")
    assert (upload.is_complete, upload.whole, await upload.read_all(), upload.is_full) == (True, b"ab", b"ab", False)
    assert b"".join([part async for part in upload.stream()]) == b"ab"
    assert (upload.is_streamed, upload.whole) == (True, None)
    with pytest.raises(Reject, match="longer than 1 bytes"):
        upload_of(max_body_bytes=1).put_whole(b"ab")


async def test_a_body_that_is_asked_for_before_its_stream_begins_is_streamed_all_the_same() -> None:
    upload = upload_of()
    upload.put(b"a")
    stream = upload.stream()  # decided while some of it was still to come
    upload.put(b"b")
    upload.finish()
    assert upload.whole == b"ab"
    assert b"".join([part async for part in stream]) == b"ab"
    assert (upload.is_streamed, upload.whole, upload.is_full) == (True, None, False)


async def test_a_streamed_upload_is_read_no_faster_than_it_is_taken() -> None:
    receive = Scripted(*[piece(b"x" * 100_000) for _ in range(50)], piece(b"", more=False))
    upload, inbound = await opened(receive, [], max_body_bytes=1 << 30)
    stream = upload.stream()
    await anext(stream)
    for _ in range(20):
        await asyncio.sleep(0)
    assert receive.taken < 10
    rest = [part async for part in stream]
    assert sum(map(len, rest)) == 49 * 100_000
    inbound.close()


async def test_a_client_that_left_is_told_to_reader_streamer_and_exchange() -> None:
    told: list[Any] = []
    upload, inbound = await opened(Scripted(piece(b"a"), {"type": "http.disconnect"}), told)
    stream = upload.stream()
    assert await anext(stream) == b"a"
    with pytest.raises(ClientLeft):
        await anext(stream)
    assert [type(error) for error in told] == [ClientLeft]
    inbound.close()


async def test_a_client_is_not_spoken_of_once_its_exchange_is_over() -> None:
    told: list[Any] = []
    receive = Scripted(piece(b"a"))
    _, inbound = await opened(receive, told)
    inbound.close()
    receive.messages.append({"type": "http.disconnect"})
    receive.more.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert told == []


async def test_a_streamed_body_is_given_once() -> None:
    upload, inbound = await opened(Scripted(piece(b"a", more=False)), [])
    assert [part async for part in upload.stream()] == [b"a"]
    with pytest.raises(RuntimeError, match="streamed"):
        await anext(upload.stream())
    with pytest.raises(RuntimeError, match="streamed"):
        await upload.read_all()
    inbound.close()


async def test_what_is_refused_is_told_to_those_that_read() -> None:
    told: list[Any] = []
    upload, inbound = await opened(Scripted(piece(b"a" * 10), piece(b"b" * 10)), told, max_body_bytes=15)
    with pytest.raises(Reject, match="max_body_bytes"):
        await upload.read_all()
    assert [error.code for error in told] == ["body_too_large"]
    inbound.close()


async def test_a_body_that_is_declared_too_long_is_refused_at_once() -> None:
    with pytest.raises(Reject, match="max_body_bytes"):
        await opened(Scripted(), [], length=16, max_body_bytes=15)


async def test_two_may_wait_for_the_same_body() -> None:
    upload = upload_of()
    readers = [asyncio.create_task(upload.read_all()) for _ in range(2)]
    await asyncio.sleep(0)
    upload.put(b"a")
    upload.finish()
    assert await asyncio.gather(*readers) == [b"a", b"a"]


async def test_whoever_puts_in_is_told_once_there_is_room() -> None:
    told: list[str] = []
    upload = upload_of(max_held_bytes=10)
    upload.on_room = lambda: told.append("room")
    upload.put(b"a" * 12)
    assert upload.is_full
    assert upload.overdue() is not None
    stream = upload.stream()
    assert await anext(stream) == b"a" * 12
    assert (told, upload.is_full, upload.overdue()) == (["room"], False, None)


@LEAVE
async def test_a_client_that_leaves_behind_a_long_body_frees_its_worker(serve: Serve, leave: str) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.fault(Faults.stall())
        async with RawClient(router.port) as client:
            await client.send(build_request(body=b"x" * 200_000))
            (request,) = await worker.wait_for_requests(1)
            leave_by(client, leave)
            assert await request.connection.wait_for_leave(timeout_s=1.0)
        (outcome,) = await router.ends.wait()
        assert outcome.kind is OutcomeKind.CLIENT_LEFT
