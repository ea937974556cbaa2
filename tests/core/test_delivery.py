"""Answers on their way to the client: whole or visibly broken, one head, and no more in memory than is read."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware

from router_core import Answer, Exchange, Headers, OutcomeKind, StateKey, hookimpl
from router_core.testing import (
    Connection,
    Faults,
    RawClient,
    ScriptedRequest,
    ScriptedWorker,
    build_request,
    exchange_once,
    peak_memory_growth,
    reply,
    reply_pieces,
)

Serve = Callable[..., Awaitable[Any]]


class First(BaseHTTPMiddleware):
    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


class Second(First):
    """Buffers nothing, but sets a header, as users' middlewares do."""

    async def dispatch(self, request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-second"] = "1"
        return response


class Third(First):
    pass


MIDDLEWARES = pytest.mark.parametrize(
    "middlewares", [(), (First,), (First, Second, Third)], ids=["bare", "one", "three"]
)


# ------------------------------------------------------------------------------------------------------------- broken
@MIDDLEWARES
@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize(
    ("raw", "came"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\ndata: 1\n\r\n", b"data: 1\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b""),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"a": 1}', b'{"a": 1}'),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b""),
    ],
    ids=["chunked", "chunked-head", "length", "length-head"],
)
async def test_a_truncated_answer_is_never_a_clean_end(
    serve: Serve, middlewares: Any, raw: bytes, came: bytes, reset: bool
) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=middlewares)
        go = asyncio.Event()

        async def cut(request: ScriptedRequest, connection: Connection) -> bool:
            await connection.send(raw)
            await go.wait()
            if reset:
                connection.reset()
            return False

        worker.handler = cut
        async with RawClient(router.port) as client:
            await client.send(build_request(json={}))
            answer = await client.read_head()
            go.set()
            await client.read_body(answer)
            assert (answer.status, answer.body, answer.clean) == (200, came, False)
            await client.wait_closed()
        (outcome,) = await router.ends.wait()
        assert outcome.kind is OutcomeKind.WORKER_LOST
        assert len(worker.requests) == 1


async def test_a_done_event_alone_is_no_success(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker)
        worker.handler = reply_pieces([b"data: 1\n\n", b"data: [DONE]\n\n", b"more"])
        worker.fault(Faults.close_amid(after_pieces=2))
        answer = await exchange_once(router.port, json={})
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert answer.clean is False


@MIDDLEWARES
async def test_an_error_before_the_head_is_told_through_middlewares(serve: Serve, middlewares: Any) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=middlewares)
        worker.fault(Faults.close_before_answer())
        answer = await exchange_once(router.port, json={})
        assert (answer.status, answer.get("x-router-error"), answer.clean) == (502, "worker_lost", True)


async def test_a_broken_answer_stays_broken_through_a_compressing_middleware(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(GZipMiddleware,))
        worker.handler = reply_pieces([b"data: 1\n\n" * 200, b"more"], content_type="text/plain")
        worker.fault(Faults.close_amid(after_pieces=1))
        answer = await exchange_once(router.port, headers=[("Accept-Encoding", "gzip")], json={})
        assert answer.get("content-encoding") == "gzip"
        assert answer.clean is False


# --------------------------------------------------------------------------------------------------------------- heads
def answering(make: Callable[[], Any]) -> type[Any]:
    class Answering:
        @hookimpl
        async def request_start(self) -> Any:
            return make()

    return Answering


@pytest.mark.parametrize(
    "make",
    [
        lambda: Answer(99),
        lambda: Answer(600),
        lambda: Answer("200"),  # type: ignore[arg-type]
        lambda: Answer(True),
        lambda: Answer(200, Headers([(b"x y", b"1")])),
        lambda: Answer(200, Headers([(b"x\r\ny", b"1")])),
        lambda: Answer(200, Headers([(b"", b"1")])),
        lambda: Answer(200, Headers([(b"x", b"1\r\nevil: 1")])),
        lambda: Answer(200, Headers([(b"x", b"\0")])),
        lambda: Answer(200, Headers([("x", "1")])),  # type: ignore[list-item]
        lambda: Answer(200, Headers([(b"x",)])),  # type: ignore[list-item]
        lambda: _with(Answer(200, body=b"x"), "content-length", "abc"),
        lambda: _with(Answer(200, body=b"x"), "content-length", "-1"),
    ],
)
async def test_a_head_that_no_server_can_send_is_a_plugin_error(serve: Serve, make: Callable[[], Any]) -> None:
    router = await serve(classes=(answering(make),))
    answer = await exchange_once(router.port, json={})
    assert (answer.status, answer.get("x-router-error"), answer.clean) == (500, "plugin_error", True)
    await router.ends.wait()
    assert router.ends.kinds == ["failed"]


def _with(answer: Answer, name: str, value: str) -> Answer:
    answer.headers.set(name, value)
    return answer


@pytest.mark.parametrize("length", ["1", "100"])
async def test_a_length_that_is_not_that_of_the_body_is_refused(serve: Serve, length: str) -> None:
    router = await serve(classes=(answering(lambda: _with(Answer(200, body=b"body"), "content-length", length)),))
    answer = await exchange_once(router.port, json={})
    assert (answer.status, answer.get("x-router-error"), answer.clean) == (500, "plugin_error", True)


@pytest.mark.parametrize("length", ["1", "100"])
async def test_a_length_that_is_not_that_of_a_stream_breaks_the_transfer(serve: Serve, length: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"bo"
        yield b"dy"

    router = await serve(classes=(answering(lambda: _with(Answer(200, chunks=pieces()), "content-length", length)),))
    answer = await exchange_once(router.port, json={})
    assert answer.clean is False


@pytest.mark.parametrize("status", [204, 304])
async def test_a_body_where_none_may_be_is_not_sent(serve: Serve, status: int) -> None:
    router = await serve(classes=(answering(lambda: Answer(status, body=b"nothing")),))
    async with RawClient(router.port) as client:
        for _ in range(2):
            answer = await client.request(json={})
            assert (answer.status, answer.body, answer.get("content-length")) == (status, b"", None)


async def test_the_answer_of_a_plugin_to_head_has_its_length_and_no_body(serve: Serve) -> None:
    router = await serve(classes=(answering(lambda: Answer.json(200, {"a": 1})),))
    async with RawClient(router.port) as client:
        for _ in range(2):
            answer = await client.request("HEAD", "/x")
            assert (answer.status, answer.body, answer.get("content-length")) == (200, b"", "7")


async def test_hop_by_hop_fields_of_a_plugin_are_dropped(serve: Serve) -> None:
    fields = Headers([(b"Transfer-Encoding", b"chunked"), (b"CONNECTION", b"close"), (b"X-Kept", b"1")])
    router = await serve(classes=(answering(lambda: Answer(200, fields.copy(), body=b"x")),))
    async with RawClient(router.port) as client:
        for _ in range(2):
            answer = await client.request(json={})
            assert (answer.status, answer.body, answer.get("x-kept")) == (200, b"x", "1")
            assert (answer.get("connection"), answer.get("transfer-encoding")) == (None, None)


async def test_the_error_answer_to_head_leaves_the_connection_usable(serve: Serve) -> None:
    router = await serve()
    async with RawClient(router.port) as client:
        for _ in range(2):
            answer = await client.request("HEAD", "/x")
            assert (answer.status, answer.body, answer.clean) == (503, b"", True)


# -------------------------------------------------------------------------------------------------------------- chunks
def wrapping(wrap: Callable[[AsyncIterator[bytes]], Any], hook: str = "around_upstream") -> type[Any]:
    class Wrapping:
        if hook == "around_upstream":

            @hookimpl
            async def around_upstream(self, exchange: Exchange, call_next: Any) -> Answer:
                answer: Answer = await call_next(exchange)
                answer.chunks = wrap(answer.chunks)
                return answer

        else:

            @hookimpl
            async def response_start(self, answer: Answer) -> None:
                answer.chunks = wrap(answer.chunks)

    return Wrapping


async def shout(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        yield chunk.upper()
        yield b""
    yield b"!"


@pytest.mark.parametrize("hook", ["around_upstream", "response_start"])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_wrapped_chunks_have_no_length_of_before(serve: Serve, hook: str, version: bytes) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(wrapping(shout, hook),))
        worker.handler = reply(b"hello")
        async with RawClient(router.port) as client:
            await client.send(b"GET /x HTTP/" + version + b"\r\nHost: h\r\n\r\n")
            answer = await client.read_answer()
        assert (answer.status, answer.body, answer.clean) == (200, b"HELLO!", True)
        assert answer.get("content-length") == (None if version == b"1.1" else "6")


async def raises_amid(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        yield chunk
        raise ValueError("amid the answer")


async def yields_text(chunks: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    async for chunk in chunks:
        yield chunk
        yield "text"


async def swallows_the_loss(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        yield chunk


@pytest.mark.parametrize("wrap", [raises_amid, yields_text])
async def test_a_wrapper_that_fails_breaks_its_own_transfer(serve: Serve, wrap: Any) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(wrapping(wrap),))
        worker.handler = reply_pieces([b"one", b"two"])
        answer = await exchange_once(router.port, json={})
        assert (answer.status, answer.clean) == (200, False)
        assert answer.body.startswith(b"one")
        await router.ends.wait()
        assert router.ends.kinds == ["failed"]
        await worker.wait_until_idle()


@pytest.mark.parametrize("chunks", [None, 7, "text", [b"a"], iter([b"a"])])
async def test_chunks_that_are_no_stream_are_the_failure_of_who_set_them(serve: Serve, chunks: Any) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(wrapping(lambda _: chunks),))
        worker.handler = reply(b"hello")
        answer = await exchange_once(router.port, json={})
        if chunks is None:
            assert (answer.status, answer.body) == (200, b"")
        else:
            assert (answer.status, answer.json()["error"]["code"]) == (500, "plugin_error")
        await worker.wait_until_idle()
    await router.settle()


async def test_a_wrapper_is_closed_when_the_client_leaves_and_before_the_end_is_told(serve: Serve) -> None:
    seen: list[str] = []

    async def watched(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            seen.append("closed")

    class Last:
        @hookimpl
        def response_end(self) -> None:
            seen.append("end")

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(wrapping(watched), Last))
        worker.handler = reply_pieces([b"one", b"two"])
        worker.fault(Faults.stall_amid(after_pieces=1))
        async with RawClient(router.port) as client:
            await client.send(build_request(json={}))
            await client.read_piece(await client.read_head())
        await router.ends.wait()
        assert seen == ["closed", "end"]


async def test_a_wrapper_that_does_not_end_is_given_up_after_the_hooks_deadline(serve: Serve) -> None:
    async def clinging(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await asyncio.Event().wait()

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(wrapping(clinging),), router={"hook_timeout_s": 0.05})
        worker.handler = reply_pieces([b"one", b"two"])
        worker.fault(Faults.stall_amid(after_pieces=1))
        async with RawClient(router.port) as client:
            await client.send(build_request(json={}))
            await client.read_piece(await client.read_head())
        await router.ends.wait()
        assert router.ends.kinds == ["client_left"]


async def test_observers_see_what_the_client_gets_and_one_that_raises_is_dropped(serve: Serve) -> None:
    seen: list[bytes] = []
    calls: list[int] = []

    class Good:
        @hookimpl
        def response_chunk(self, chunk: bytes) -> None:
            seen.append(chunk)

    class Bad:
        @hookimpl
        def response_chunk(self, chunk: bytes) -> None:
            calls.append(1)
            raise ValueError("an observer")

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Bad, wrapping(shout), Good))
        worker.handler = reply_pieces([b"one", b"two"])
        for turn in (1, 2):
            answer = await exchange_once(router.port, json={})
            assert (answer.body, answer.clean) == (b"ONETWO!", True)
            assert b"".join(seen) == b"ONETWO!" * turn
            assert len(calls) == turn
        await router.ends.wait(2)
        assert router.ends.kinds == ["ok", "ok"]


class Looks:
    """Is told of every chunk, so that none may pass it by."""

    @hookimpl
    def response_chunk(self, exchange: Exchange, chunk: bytes) -> None:
        exchange.state[CAME] = [*exchange.state.get(CAME, []), chunk]


CAME = StateKey[list[bytes]]("came")


@pytest.mark.parametrize("front", ["auto", "asgi"])
@pytest.mark.parametrize("classes", [(), (Looks,)], ids=["passed on", "looked at"])
async def test_each_piece_reaches_its_client_before_the_next_one_is_there(
    serve: Serve, classes: Any, front: str
) -> None:
    pieces = [b"one", b"two" * 40_000, b"three", b"four"]
    read = asyncio.Event()

    async def in_step(request: ScriptedRequest, connection: Connection) -> bool:
        await connection.begin(200, content_type="text/event-stream")
        for piece in pieces:
            await connection.write(piece)
            await read.wait()
            read.clear()
        return await connection.end()

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=classes, router={"front": front})
        worker.handler = in_step
        async with RawClient(router.port) as client:
            for _ in range(2):  # the connections are as good as before
                await client.send(build_request(json={}))
                answer = await client.read_head()
                for piece in pieces:
                    came = b""
                    while len(came) < len(piece):
                        came += await client.read_piece(answer)
                    assert came == piece
                    read.set()
                assert await client.read_piece(answer) == b""
        await router.ends.wait(2)
        assert router.ends.kinds == ["ok", "ok"]
        assert len(worker.connections) == 1
        for exchange in router.ends.exchanges:
            assert b"".join(exchange.state.get(CAME, pieces)) == b"".join(pieces)
            assert exchange.worker.last_byte_at > exchange.attempts[0].first_byte_at


# --------------------------------------------------------------------------------------------------------------- memory
async def test_a_huge_answer_to_a_slow_reader_is_not_held_in_memory(start_process: Any) -> None:
    async with ScriptedWorker() as worker:
        router = await start_process("--worker", worker.url, "--set", "enabled=[]")
        await exchange_once(router.port, json={"text": "warm"})
        worker.fault(Faults.huge(50))
        async with RawClient(router.port, receive_buffer_bytes=64 * 1024) as client:
            await client.send(build_request(json={"text": "x", "return_routed_experts": True}))
            with peak_memory_growth(router.pid) as growth:
                answer = await client.read_head()
                client.hold_reading()
                await asyncio.sleep(0.3)  # the router takes in what it will; nothing tells when it stops
                client.resume_reading()
                await client.read_body(answer, keep=False, timeout_s=30)
        assert answer.clean is True
        assert growth.peak_mib < 16


async def test_a_huge_upload_to_a_slow_worker_is_not_held_in_memory(start_process: Any) -> None:
    async with ScriptedWorker(keep_bodies=False, receive_buffer_bytes=64 * 1024) as worker:
        router = await start_process("--worker", worker.url, "--set", "enabled=[]")
        worker.handler = reply(b"taken")
        await exchange_once(router.port, body=b"warm")
        worker.fault(Faults.stop_reading(until=(go := asyncio.Event())))
        async with RawClient(router.port) as client:
            with peak_memory_growth(router.pid) as growth:
                sending = asyncio.create_task(client.send(build_request(body=bytes(100 << 20)), timeout_s=30))
                await worker.wait_for_requests(1)
                await asyncio.sleep(0.3)  # the same
                go.set()
                answer = await client.read_answer(timeout_s=30)
                await sending
        assert (answer.status, answer.body) == (200, b"taken")
        assert growth.peak_mib < 16


class Texts:
    """A stream that gives what is no bytes, with a length as if it were."""

    def __init__(self) -> None:
        self._left = 3

    def __aiter__(self) -> "Texts":
        return self

    async def __anext__(self) -> str:
        if not self._left:
            raise StopAsyncIteration
        self._left -= 1
        return "x"


@pytest.mark.parametrize("has_length", [False, True])
async def test_a_chunk_that_is_no_bytes_breaks_the_transfer(serve: Serve, has_length: bool) -> None:
    class Wraps:
        @hookimpl
        async def response_start(self, answer: Answer) -> None:
            answer.chunks = Texts()  # type: ignore[assignment]
            if has_length:
                answer.headers.set("content-length", "3")

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Wraps,))
        answer = await exchange_once(router.port, json={"text": "hi"})
        assert (answer.clean, answer.body) == (False, b"")
