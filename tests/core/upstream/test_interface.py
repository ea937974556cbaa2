"""What the router does with each fault of a worker, by either data client."""

import asyncio
import contextlib
import gc
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router_core import OutcomeKind
from router_core.testing import (
    Connection,
    Faults,
    RawClient,
    ScriptedRequest,
    ScriptedWorker,
    build_request,
    exchange_once,
    reply,
    reply_pieces,
)
from router_core.upstream import Incoming

Route = Callable[..., Awaitable[Any]]
ASK = {"text": "hi"}
STREAM = {"text": "hi", "stream": True}
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def code(answer: Any) -> str | None:
    return answer.get("x-router-error")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# -------------------------------------------------------------------------------------------------- before the answer
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_a_refused_connection_is_a_502_that_says_nothing_was_sent(route: Route, host: str) -> None:
    router = await route(f"http://{host}:{free_port()}")
    answer = await exchange_once(router.port, json=ASK)
    assert (answer.status, code(answer)) == (502, "worker_unreachable")
    assert answer.json()["error"]["request_sent"] is False
    (outcome,) = await router.ends.wait()
    assert outcome.kind is OutcomeKind.WORKER_LOST
    (attempt,) = router.ends.exchanges[0].attempts
    assert attempt.request_sent is False
    assert attempt.error.refused is True


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a.b-.c-.invalid"])
async def test_a_name_that_is_no_host_is_a_502(route: Route, host: str) -> None:
    router = await route(f"http://{host}:1")
    answer = await exchange_once(router.port, json=ASK)
    assert (answer.status, code(answer)) == (502, "worker_unreachable")
    await router.ends.wait()
    assert router.ends.exchanges[0].attempts[0].error.refused is False


async def test_every_address_of_a_name_is_tried_and_the_last_error_told(
    route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dual-stack host whose addresses all refuse is refused; one that listens on the second is reached."""
    resolve = socket.getaddrinfo

    def two_addresses(host: Any, port: Any, *args: Any, **more: Any) -> Any:
        if host != "two.test":
            return resolve(host, port, *args, **more)
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", int(port), 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port))),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
    async with ScriptedWorker() as worker:
        router = await route(f"http://two.test:{worker.port}")
        assert (await exchange_once(router.port, json=ASK)).status == 200
    answer = await exchange_once(router.port, json=ASK)
    assert (answer.status, code(answer)) == (502, "worker_unreachable")
    await router.ends.wait(2)
    assert router.ends.exchanges[-1].attempts[0].error.refused is True


@contextlib.contextmanager
def deaf_port() -> Any:
    """A port whose backlog is full: connections neither come about nor are refused."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def test_a_connection_that_does_not_come_about_is_a_502_within_the_connect_timeout(route: Route) -> None:
    with deaf_port() as port:
        router = await route(f"http://127.0.0.1:{port}", router={"connect_timeout_s": 0.1})
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, code(answer)) == (502, "worker_unreachable")
        assert "0.1 s" in answer.json()["error"]["message"]


async def test_a_client_that_leaves_while_its_worker_is_being_connected_counts_no_longer(route: Route) -> None:
    with deaf_port() as port:
        router = await route(f"http://127.0.0.1:{port}", router={"connect_timeout_s": 30})
        async with RawClient(router.port) as client:
            await client.send(build_request(json=ASK))
            while not router.workers[0].inflight:  # noqa: ASYNC110  # no event tells of a connect that hangs
                await asyncio.sleep(0.001)
        outcomes = await router.ends.wait()
        assert outcomes[0].kind is OutcomeKind.CLIENT_LEFT
        assert router.ends.exchanges[0].attempts[0].outcome.kind is OutcomeKind.CLIENT_LEFT


@pytest.mark.parametrize("reset", [False, True])
async def test_a_worker_lost_before_its_answer_is_a_502_and_is_not_asked_again(route: Route, reset: bool) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        worker.fault(Faults.close_before_answer(reset=reset))
        answer = await exchange_once(router.port, json={"text": "once"})
        assert (answer.status, code(answer)) == (502, "worker_lost")
        assert answer.json()["error"]["request_sent"] is True
        assert len(worker.requests) == 1
        (outcome,) = await router.ends.wait()
        assert (outcome.kind, outcome.status) == (OutcomeKind.WORKER_LOST, 502)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01 no http\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 99 Low\r\n\r\n",
        b"HTTP/1.1 999 High\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 600 High\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x01b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX(Y): b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
)
async def test_an_answer_that_is_not_http_is_a_502(route: Route, raw: bytes) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        worker.fault(Faults.raw(raw))
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, code(answer)) == (502, "worker_protocol_error"), answer.body
        (outcome,) = await router.ends.wait()
        assert outcome.kind is OutcomeKind.WORKER_ERROR
        again = await exchange_once(router.port, json=ASK)
        assert again.status == 200


async def test_half_a_head_is_a_lost_worker(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        worker.fault(Faults.raw(b"HTTP/1.1 200 OK\r\nContent-Le"))
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, code(answer)) == (502, "worker_lost")


async def test_interim_answers_are_dropped(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        worker.fault(Faults.interim(103, [("Link", "</x>")], count=3))
        answer = await exchange_once(router.port, json=ASK)
        assert answer.status == 200
        assert (answer.interim, answer.get("link")) == ([], None)


async def test_a_continue_that_nobody_awaits_is_dropped(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        worker.fault(Faults.interim(100))
        assert (await exchange_once(router.port, json=ASK)).status == 200


# ------------------------------------------------------------------------------------------------ amid the answer
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    "head",
    [CHUNKED + b"5\r\nhello\r\n", CHUNKED + b"9\r\nhello", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"],
)
async def test_an_answer_cut_short_is_no_clean_end(route: Route, head: bytes, reset: bool) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        has_begun = asyncio.Event()

        async def cut(request: ScriptedRequest, connection: Connection) -> bool:
            await connection.send(head)
            await has_begun.wait()
            if reset:
                connection.reset()
            return False

        worker.handler = cut
        async with RawClient(router.port) as client:
            await client.send(build_request(json=STREAM))
            answer = await client.read_head()
            has_begun.set()
            assert await client.read_body(answer) == b"hello"
            assert answer.clean is False
        assert len(worker.requests) == 1
        (outcome,) = await router.ends.wait()
        assert outcome.kind is OutcomeKind.WORKER_LOST


async def test_an_answer_that_ends_with_its_connection_comes_whole(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        worker.handler = reply(b"hello world")
        worker.fault(Faults.close_delimited())
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.body, answer.clean) == (200, b"hello world", True)
        (outcome,) = await router.ends.wait()
        assert outcome.is_ok


async def test_an_answer_that_ends_with_a_reset_is_broken(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        has_begun = asyncio.Event()

        async def cut(request: ScriptedRequest, connection: Connection) -> bool:
            await connection.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello")
            await has_begun.wait()
            connection.reset()
            return False

        worker.handler = cut
        async with RawClient(router.port) as client:
            await client.send(build_request(json=ASK))
            answer = await client.read_head()
            assert await client.read_piece(answer) == b"hello"
            has_begun.set()
            await client.read_body(answer)
            assert answer.clean is False
        await router.ends.wait()
        assert router.ends.kinds == ["worker_lost"]


@pytest.mark.parametrize("bad", [b"zz\r\n", b"5\r\nhelloXX", b"-1\r\n", b"fffffffffffffffff\r\n"])
async def test_broken_chunks_break_the_transfer(route: Route, bad: bytes) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        has_begun = asyncio.Event()

        async def garble(request: ScriptedRequest, connection: Connection) -> bool:
            await connection.send(CHUNKED + b"2\r\nok\r\n")
            await has_begun.wait()
            await connection.send(bad)
            await connection.wait_for_leave()
            return False

        worker.handler = garble
        async with RawClient(router.port) as client:
            await client.send(build_request(json=ASK))
            answer = await client.read_head()
            has_begun.set()
            await client.read_body(answer)
            assert answer.clean is False
            assert answer.body.startswith(b"ok")
        (outcome,) = await router.ends.wait()
        assert outcome.kind is OutcomeKind.WORKER_ERROR


async def test_bytes_beyond_the_length_are_not_passed_and_spoil_no_later_answer(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        worker.handler = reply(b"second")
        extra = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
        worker.fault(Faults.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst" + extra, keep_open=True))
        assert (await exchange_once(router.port, json=ASK)).body == b"first"
        assert (await exchange_once(router.port, json=ASK)).body == b"second"


async def test_an_unasked_answer_on_an_idle_connection_is_given_to_nobody(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        worker.handler = reply(b"first")
        assert (await exchange_once(router.port, json=ASK)).body == b"first"
        await worker.wait_until_idle()
        await worker.connections[0].send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await asyncio.sleep(0.05)  # until the router has seen it; nothing tells
        worker.handler = reply(b"second")
        assert (await exchange_once(router.port, json=ASK)).body == b"second"
        assert len(worker.connections) == 2


@pytest.mark.parametrize("length", [b"000000000000000000000000000002", b"2 ", b"\t2"])
async def test_a_length_may_be_written_in_odd_ways(route: Route, length: bytes) -> None:
    async with ScriptedWorker() as worker:
        worker.fault(Faults.raw(b"HTTP/1.1 200 OK\r\nContent-Length:" + length + b"\r\n\r\nok"))
        answer = await exchange_once((await route(worker)).port, json=ASK)
        assert (answer.status, answer.body, answer.clean) == (200, b"ok", True)


# -------------------------------------------------------------------------------------------------- kept connections
async def test_a_connection_keeps_nothing_of_its_exchanges(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        async with RawClient(router.port) as client:
            for _ in range(10):
                assert (await client.request("POST", "/generate", json=ASK)).status == 200
            gc.collect()
            assert sum(isinstance(each, Incoming) for each in gc.get_objects()) <= 1


async def test_a_connection_is_used_again(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        for _ in range(3):
            assert (await exchange_once(router.port, json=ASK)).status == 200
            await worker.wait_until_idle()
        assert len(worker.connections) == 1


@pytest.mark.parametrize("reset", [False, True])
async def test_a_kept_connection_that_its_worker_closed_is_no_error(route: Route, reset: bool) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        for _ in range(4):
            assert (await exchange_once(router.port, json=ASK)).status == 200
            await worker.wait_until_idle()
            connection = worker.connections[-1]
            if reset:
                connection.reset()
            else:
                connection.close()
        assert len(worker.connections) == 4
        assert len(worker.requests) == 4


async def test_a_kept_connection_closed_in_the_moment_of_use_is_a_lost_worker_and_no_second_request(
    route: Route,
) -> None:
    """The FIN crosses the request: whether the worker took it is unknown, so it is not sent again."""
    async with ScriptedWorker() as worker:
        router = await route(worker)
        assert (await exchange_once(router.port, json=ASK)).status == 200
        await worker.wait_until_idle()
        worker.fault(lambda handler: _close_unread)
        answer = await exchange_once(router.port, json={"text": "x"})
        assert (answer.status, code(answer)) == (502, "worker_lost")
        assert answer.json()["error"]["request_sent"] is True
        assert len(worker.connections) == 1
        assert (await exchange_once(router.port, json=ASK)).status == 200


async def _close_unread(request: ScriptedRequest, connection: Connection) -> bool:
    connection.close()
    return False


@pytest.mark.parametrize("fields", [[("Connection", "close")], [("Connection", "Close, x-y")]])
async def test_a_worker_that_says_close_is_connected_anew(route: Route, fields: list[tuple[str, str]]) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        worker.handler = reply(b"{}", headers=fields)
        for _ in range(2):
            assert (await exchange_once(router.port, json=ASK)).status == 200
        assert [request.connection_number for request in worker.requests] == [1, 2]


async def test_an_http_1_0_worker_is_understood_and_connected_anew(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        worker.fault(Faults.raw(b"HTTP/1.0 200 OK\r\n\r\nold"), times=2)
        for _ in range(2):
            answer = await exchange_once(router.port, json=ASK)
            assert (answer.status, answer.body, answer.clean) == (200, b"old", True)
        assert len(worker.connections) == 2


# ------------------------------------------------------------------------------------------------------ answers' heads
@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("fields", [b"", b"Content-Length: 100\r\n", b"Content-Length: 0\r\n"])
async def test_an_answer_without_a_body_leaves_the_connections_usable(route: Route, status: int, fields: bytes) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        worker.fault(Faults.raw(b"HTTP/1.1 %d X\r\nETag: a\r\n%b\r\n" % (status, fields), keep_open=True))
        async with RawClient(router.port) as client:
            answer = await client.request("GET", "/v1/thing")
            assert (answer.status, answer.body, answer.get("etag")) == (status, b"", "a")
            assert (await client.request(json=ASK)).status == 200
        assert len(worker.connections) == 1
        await router.ends.wait(2)
        assert router.ends.kinds == ["ok", "ok"]


@pytest.mark.parametrize("framing", [b"Content-Length: 12345\r\n", b"Transfer-Encoding: chunked\r\n", b""])
async def test_the_answer_to_head_has_no_body_and_keeps_its_length(route: Route, framing: bytes) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        worker.fault(Faults.raw(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n", keep_open=True))
        async with RawClient(router.port) as client:
            answer = await client.request("HEAD", "/v1/thing")
            assert answer.status == 200
            assert answer.get("content-length") == ("12345" if b"Length" in framing else None)
            assert (await client.request(json=ASK)).status == 200
        assert len(worker.connections) == (1 if framing else 2)


async def test_a_field_of_64_kib_passes_and_one_above_is_a_502(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        value = "r" * 65_000
        worker.handler = reply(b"{}", headers=[("X-Routed", value)])
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.get("x-routed")) == (200, value)
        worker.handler = reply(b"{}", headers=[("X-Routed", "r" * 70_000)])
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, code(answer)) == (502, "worker_protocol_error")


async def test_an_endless_head_is_a_502(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)

        async def endless(request: ScriptedRequest, connection: Connection) -> bool:
            await connection.send(b"HTTP/1.1 200 OK\r\nX: ")
            with contextlib.suppress(ConnectionResetError):
                for _ in range(4096):
                    await connection.send(b"r" * 65536)
            return False

        worker.handler = endless
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, code(answer)) == (502, "worker_protocol_error")


async def test_many_fields_pass_in_order(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        fields = [(f"X-{i % 7}", str(i)) for i in range(500)]
        worker.handler = reply(b"{}", headers=fields)
        answer = await exchange_once(router.port, json=ASK)
        got = [
            (k.decode(), v.decode()) for k, v in answer.headers if k.lower().startswith(b"x-") and b"router" not in k
        ]
        assert got == [(name.lower(), value) for name, value in fields]


# ------------------------------------------------------------------------------------------------------ early answers
@pytest.mark.parametrize("then", ["read", "close", "reset"])
async def test_an_answer_before_the_upload_was_read_reaches_the_client(
    route: Route, then: Any, data_client: str
) -> None:
    if data_client == "aiohttp" and then != "read":
        pytest.skip("asyncio drops what was received when a write fails; only h1 reads the rest")
    async with ScriptedWorker(receive_buffer_bytes=4096) as worker:
        router = await route(worker)
        worker.fault(Faults.early_answer(413, b'{"too":"long"}', then=then))
        answer = await exchange_once(router.port, body=b"x" * (8 << 20))
        assert (answer.status, answer.body) == (413, b'{"too":"long"}')
        assert (await exchange_once(router.port, json=ASK)).status == 200
        await router.ends.wait(2)
        assert router.ends.kinds == ["ok", "ok"]


async def test_an_early_answer_ends_an_upload_that_never_does(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        worker.fault(Faults.early_answer(400, b"no", then="close"))
        async with RawClient(router.port) as client:
            await client.send(build_request(headers=[("Transfer-Encoding", "chunked")], framed=False), b"3\r\nabc\r\n")
            answer = await client.read_answer()
            assert (answer.status, answer.body) == (400, b"no")
        await router.ends.wait()


async def test_a_worker_that_dies_during_the_upload_is_a_502(route: Route) -> None:
    async with ScriptedWorker(receive_buffer_bytes=4096) as worker:
        router = await route(worker)

        def die(handler: Any) -> Any:
            async def faulty(request: ScriptedRequest, connection: Connection) -> bool:
                await request.read_piece()
                connection.reset()
                return False

            return faulty

        worker.fault(die)
        answer = await exchange_once(router.port, body=b"x" * (8 << 20))
        assert (answer.status, code(answer)) == (502, "worker_lost")


async def test_a_worker_that_reads_no_upload_is_left_when_the_client_breaks_off(route: Route) -> None:
    """Nothing moves any more, so nothing is read, and the client's end is looked for.

    (That of a client which closes orderly is not to be seen: its FIN waits in its own kernel behind what is unsent.)
    """
    async with ScriptedWorker(receive_buffer_bytes=4096) as worker:
        router = await route(worker)
        worker.fault(Faults.stop_reading(until=(resume := asyncio.Event())))
        async with RawClient(router.port) as client:
            sending = asyncio.create_task(client.send(build_request(body=b"x" * (16 << 20))))
            await worker.wait_until(lambda: len(worker.requests) == 1)
            await asyncio.sleep(0.1)  # until every buffer on the way is full; nothing tells
            client.reset()
            await asyncio.gather(sending, return_exceptions=True)
        await router.ends.wait()
        assert router.ends.kinds == ["client_left"]
        resume.set()
        await worker.wait_until_idle()
        assert worker.requests[0].clean is False


# ------------------------------------------------------------------------------------------------------- in the clear
async def test_many_requests_are_in_flight_at_the_same_time(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        worker.hold()
        asked = [
            asyncio.create_task(exchange_once(router.port, json={"text": str(i)}, timeout_s=30)) for i in range(300)
        ]
        await worker.wait_for_requests(300, timeout_s=30)
        assert router.workers[0].inflight == 300
        worker.release()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}


async def test_a_stream_passes_chunk_by_chunk_as_it_comes(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        steps: asyncio.Queue[None] = asyncio.Queue()

        async def stepwise(request: ScriptedRequest, connection: Connection) -> bool:
            await connection.begin()
            for step in range(3):
                await connection.write(b"data: %d\n\n" % step)
                await steps.get()
            return await connection.end()

        worker.handler = stepwise
        async with RawClient(router.port) as client:
            await client.send(build_request(json=STREAM))
            answer = await client.read_head()
            for step in range(3):
                assert await client.read_piece(answer) == b"data: %d\n\n" % step
                steps.put_nowait(None)
            await client.read_body(answer)
            assert answer.clean is True


async def test_one_byte_chunks_pass_unchanged(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        stream = 'data: {"text":"你好🦀 e\u0301 \u2028 \x85"}\r\n\r\n'.encode() * 3 + b"data: [DONE]\n\n"
        worker.handler = reply_pieces([stream[at : at + 1] for at in range(len(stream))])
        answer = await exchange_once(router.port, json=STREAM)
        assert (answer.body, answer.clean) == (stream, True)


async def test_chunk_extensions_and_trailers_end_clean(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        raw = CHUNKED + b'5;ext="a b"\r\n{"a":\r\n3\r\n 1}\r\n0\r\nX-T: 1\r\n\r\n'
        worker.fault(Faults.raw(raw, keep_open=True))
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.body, answer.clean) == (200, b'{"a": 1}', True)
        assert answer.get("content-length") in (None, "8")  # what is whole by then may be sent with its length
        assert (await exchange_once(router.port, json=ASK)).status == 200
        assert len(worker.connections) == 1


async def test_ipv6_prefixes_and_slashes_make_the_right_target(route: Route) -> None:
    async with ScriptedWorker() as plain, ScriptedWorker(host="::1") as six:
        for url, target, host in (
            (plain.url + "/", b"/generate?x=1", f"127.0.0.1:{plain.port}"),
            (
                plain.url.replace("127.0.0.1", "LOCALHOST").replace("http", "HTTP"),
                b"/generate?x=1",
                f"localhost:{plain.port}",
            ),
            (plain.url + "/base/", b"/base/generate?x=1", f"127.0.0.1:{plain.port}"),
            (six.url + "/a%2Fb", b"/a%2Fb/generate?x=1", f"[::1]:{six.port}"),
        ):
            router = await route(url)
            answer = await exchange_once(router.port, target="/generate?x=1", json=ASK)
            assert answer.status == 200
            request = (six if "::1" in url else plain).requests[-1]
            assert (request.target, request.values("host")) == (target, [host])
            assert answer.get("x-router-worker") == url


async def test_proxies_of_the_environment_are_not_used(route: Route, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    async with ScriptedWorker() as worker:
        router = await route(worker)
        assert (await exchange_once(router.port, json=ASK)).status == 200
        assert worker.requests[0].target == b"/generate"


async def test_a_tls_worker_that_speaks_none_is_a_502(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker.url.replace("http:", "https:"), router={"connect_timeout_s": 0.2})
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, code(answer)) == (502, "worker_unreachable")
        worker.errors.clear()  # it says itself that this was no HTTP


async def test_redirects_and_cookies_are_passed_on(route: Route) -> None:
    async with ScriptedWorker() as worker:
        router = await route(worker)
        cookies = ["a=1; Expires=Tue, 25 Aug 2026 08:13:41 GMT; Path=/", "b=2"]
        fields = [("Location", "/elsewhere"), *[("Set-Cookie", cookie) for cookie in cookies]]
        worker.handler = reply(b"", 307, fields)
        for _ in range(2):
            answer = await exchange_once(router.port, json=ASK)
            assert (answer.status, answer.get("location")) == (307, "/elsewhere")
            assert answer.values("set-cookie") == cookies
        assert len(worker.requests) == 2
        assert worker.requests[1].get("cookie") is None
