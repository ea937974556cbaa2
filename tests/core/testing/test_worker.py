"""The scripted worker: what it logs, how it lives, how it is waited for."""

import asyncio

import aiohttp
import pytest

from router_core.testing import (
    Connection,
    MalformedHttpError,
    NoAnswerError,
    RawClient,
    ScriptedRequest,
    ScriptedWorker,
    build_request,
    exchange_once,
    reply,
    reply_pieces,
)


async def test_a_request_is_logged_in_the_bytes_that_came() -> None:
    fields = b"Host: x\r\nX-Two: 1\r\nx-two:  2 \r\nX-Odd: caf\xe9\r\nContent-Length: 5\r\n\r\n"
    head = b"POST /generate?a=%2F&a=b HTTP/1.1\r\n" + fields
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.handler = reply(b"ok")
        await client.send(head + b'{"a"}')
        assert (await client.read_answer()).body == b"ok"
    (request,) = worker.requests
    assert request.raw == head
    assert (request.method, request.target, request.path) == ("POST", b"/generate?a=%2F&a=b", "/generate")
    assert request.headers[1:4] == [(b"X-Two", b"1"), (b"x-two", b"2"), (b"X-Odd", b"caf\xe9")]
    assert request.values("X-TWO") == ["1", "2"]
    assert request.get("x-odd") == "café"
    assert request.body == b'{"a"}'
    assert (request.clean, request.body_framing, request.connection_number) == (True, "length", 1)


async def test_a_chunked_upload_keeps_its_chunks_and_trailers() -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.handler = reply()
        await client.send(build_request(headers={"Transfer-Encoding": "chunked"}))
        await client.send(b"3;x=1\r\nabc\r\n", b"A\r\n0123456789\r\n0\r\nX-End: yes\r\n\r\n")
        await client.read_answer()
    (request,) = worker.requests
    assert (request.body, request.chunk_sizes, request.clean) == (b"abc0123456789", [3, 10], True)
    assert request.trailers == [(b"X-End", b"yes")]


@pytest.mark.parametrize("leave", ["leave", "reset"])
async def test_an_upload_cut_short_is_logged_as_unclean_and_never_handled(leave: str) -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        await client.send(build_request(body=b"x" * 1000)[:-400])
        await worker.wait_until(lambda: len(worker.requests) == 1)
        getattr(client, leave)()
        (request,) = await worker.wait_for_requests(1)
        await worker.wait_until_idle()
    assert request.clean is False
    assert request.body in (b"x" * 600, b"")
    assert request.peer_left


async def test_expect_continue_is_answered_when_the_body_is_read() -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        whole = build_request(headers={"Expect": "100-continue"}, body=b"later")
        await client.send(whole[:-5])
        worker.handler = reply(b"thanks")
        await worker.wait_until(lambda: len(worker.requests) == 1)
        await client.send(whole[-5:])
        answer = await client.read_answer()
    assert [interim.status for interim in answer.interim] == [100]
    assert answer.body == b"thanks"


async def test_a_connection_is_kept_and_pipelined_requests_are_answered_in_order() -> None:
    async def count(request: ScriptedRequest, connection: Connection) -> bool:
        return await connection.answer(b"%d" % connection.requests_read)

    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.handler = count
        await client.send(build_request(body=b"1") * 3)
        assert [(await client.read_answer()).body for _ in range(3)] == [b"1", b"2", b"3"]
        assert (await exchange_once(worker.port)).body == b"1"
        assert [request.connection_number for request in worker.requests] == [1, 1, 1, 2]
        assert len(worker.connections) == 2


async def test_health_checks_are_answered_and_counted_apart() -> None:
    async with ScriptedWorker() as worker:
        for path in ("/health", "/ready", "/health_generate", "/get_model_info", "/v1/models"):
            assert (await exchange_once(worker.port, "GET", path)).status == 200
        head = await exchange_once(worker.port, "HEAD", "/health")
        assert (head.status, head.body, head.clean) == (200, b"", True)
        await worker.wait_for_health_requests(6)
        assert worker.requests == []
        models = await exchange_once(worker.port, "GET", "/v1/models")
        assert models.json()["data"][0]["id"] == worker.engine.model
        worker.health.status = 503
        assert (await exchange_once(worker.port, "GET", "/health")).status == 503


async def test_a_hanging_health_check_is_accepted_and_never_answered() -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.health.hangs = True
        await client.send(build_request("GET", "/health"))
        await worker.wait_for_health_requests(1)
        with pytest.raises(TimeoutError):
            await client.read_head(timeout_s=0.05)
        client.leave()


async def test_a_late_health_check_answers_after_its_delay() -> None:
    async with ScriptedWorker() as worker:
        worker.health.delay_s = 0.05
        started = asyncio.get_running_loop().time()
        assert (await exchange_once(worker.port, "GET", "/health")).status == 200
        assert asyncio.get_running_loop().time() - started >= 0.04


async def test_a_stopped_worker_refuses_and_starts_again_on_its_port() -> None:
    async with ScriptedWorker() as worker:
        port = worker.port
        async with RawClient(port) as kept:
            await kept.request()
            await worker.stop()
            await kept.wait_closed()
        assert not worker.is_listening
        for _ in range(20):
            with pytest.raises(ConnectionRefusedError):
                await exchange_once(port)
        await worker.start()
        assert worker.port == port
        assert (await exchange_once(port, json={"text": "hi"})).status == 200


async def test_a_stop_with_a_reset_is_a_reset_for_the_client() -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.hold()
        await client.send(build_request(json={"text": "hi"}))
        await worker.wait_for_requests(1)
        await worker.stop(reset=True)
        with pytest.raises(NoAnswerError) as caught:
            await client.read_head()
        assert isinstance(caught.value.__cause__.__cause__, ConnectionResetError)  # type: ignore[union-attr]  # so chained


async def test_a_refusing_worker_finishes_what_it_has_begun() -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.hold()
        await client.send(build_request(json={"text": "hi"}))
        await worker.wait_for_requests(1)
        worker.refuse()
        with pytest.raises(ConnectionRefusedError):
            await exchange_once(worker.port)
        worker.release()
        assert (await client.read_answer()).clean is True


async def test_live_counts_the_handlers_that_run() -> None:
    async with ScriptedWorker() as worker:
        worker.hold()
        asking = [asyncio.create_task(exchange_once(worker.port, json={"text": "hi"})) for _ in range(3)]
        await worker.wait_until(lambda: worker.live == 3)
        worker.release()
        answers = await asyncio.gather(*asking)
        await worker.wait_until_idle()
        assert [answer.status for answer in answers] == [200] * 3


async def test_a_client_that_leaves_ends_a_held_generation() -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.hold()
        await client.send(build_request(json={"text": "hi"}))
        (request,) = await worker.wait_for_requests(1)
        assert not request.connection.peer_has_left
        client.leave()
        await worker.wait_until(lambda: request.is_handled)
        assert request.peer_left
        assert request.connection.peer_left_at is not None
        assert worker.live == 0


async def test_what_a_handler_raises_is_raised_when_the_worker_is_left() -> None:
    async def wrong(request: ScriptedRequest, connection: Connection) -> bool:
        raise AssertionError("the plugin sent no header")

    with pytest.raises(AssertionError, match="no header"):
        async with ScriptedWorker() as worker:
            worker.handler = wrong
            with pytest.raises(NoAnswerError):
                await exchange_once(worker.port)


async def test_a_request_that_is_no_http_is_an_error_of_the_test() -> None:
    with pytest.raises(MalformedHttpError, match="begins with"):
        async with ScriptedWorker() as worker, RawClient(worker.port) as client:
            await client.send(b"hello\r\n\r\n")
            await client.wait_closed()


async def test_waiting_in_vain_says_what_was_seen() -> None:
    async with ScriptedWorker() as worker:
        await exchange_once(worker.port, "PUT", "/there")
        with pytest.raises(TimeoutError, match="PUT /there"):
            await worker.wait_for_requests(2, timeout_s=0.01)


async def test_bodies_that_are_not_kept_are_still_read() -> None:
    async with ScriptedWorker(keep_bodies=False) as worker:
        worker.handler = reply(b"read")
        answer = await exchange_once(worker.port, body=b"x" * (4 << 20))
        assert answer.body == b"read"
        assert (worker.requests[0].clean, worker.requests[0].body) == (True, b"")


async def test_32_mib_pass_both_ways_unchanged() -> None:
    up, down = bytes(range(256)) * (1 << 17), bytes(range(255, -1, -1)) * (1 << 17)
    async with ScriptedWorker() as worker:
        worker.handler = reply(down)
        answer = await exchange_once(worker.port, body=up)
        assert worker.requests[0].body == up
        assert (answer.body, answer.clean) == (down, True)


async def test_ipv6_has_a_url_with_brackets() -> None:
    async with ScriptedWorker(host="::1") as worker:
        assert worker.url == f"http://[::1]:{worker.port}"
        assert (await exchange_once(worker.port, host="::1", json={"text": "hi"})).status == 200


async def test_aiohttp_reads_what_the_worker_says() -> None:
    async with ScriptedWorker() as worker, aiohttp.ClientSession() as session:
        async with session.post(f"{worker.url}/generate", json={"text": "hi"}) as answer:
            assert (await answer.json())["text"] == "Words of a scripted worker."
        worker.handler = reply_pieces([b"data: 1\n", b"\ndata: 2\n\n"])
        async with session.post(f"{worker.url}/generate", json={}) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            assert await answer.read() == b"data: 1\n\ndata: 2\n\n"


async def test_no_task_and_no_socket_is_left_behind() -> None:
    before = asyncio.all_tasks()
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.hold()
        await client.send(build_request(json={"text": "hi"}))
        await worker.wait_for_requests(1)
    assert asyncio.all_tasks() == before
    with pytest.raises(ConnectionRefusedError):
        await exchange_once(worker.port)
