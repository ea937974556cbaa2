"""The raw client: framing and its verdict, interim answers, leaving, slow reading."""

import asyncio
import socket

import pytest

from router_core.testing import (
    Faults,
    MalformedHttpError,
    NoAnswerError,
    RawClient,
    ScriptedWorker,
    build_request,
    exchange_once,
    reply,
    reply_pieces,
)


async def answered_with(*raw: bytes, method: str = "POST", timeout_s: float = 5) -> tuple[int, bytes, bool | None]:
    """Status, body and verdict of an answer of exactly these bytes, after which the worker closes."""
    async with ScriptedWorker() as worker:
        worker.fault(Faults.raw(*raw))
        answer = await exchange_once(worker.port, method, timeout_s=timeout_s)
        return answer.status, answer.body, answer.clean


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("raw", "body", "clean"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", b"ok", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 200 OK\r\n\r\nok", b"ok", None),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (CHUNKED + b"2\r\nok\r\n0\r\n\r\n", b"ok", True),
        (CHUNKED + b"2;e=1\r\nok\r\n0\r\nX-T: 1\r\n\r\n", b"ok", True),
        (CHUNKED + b"2\r\nok\r\n", b"ok", False),
        (CHUNKED + b"2\r\nok\r\n0\r\n", b"ok", False),
        (CHUNKED + b"2\r\nok", b"ok", False),
        (CHUNKED + b"9\r\nok", b"ok", False),
        (CHUNKED + b"2\r\nok\r\n1", b"ok", False),
        (CHUNKED, b"", False),
    ],
)
async def test_the_verdict_is_what_the_framing_says(raw: bytes, body: bytes, clean: bool | None) -> None:
    status, got, verdict = await answered_with(raw)
    assert (status // 100, got, verdict) == (2, body, clean)


async def test_head_has_no_body_whatever_its_length_says() -> None:
    assert await answered_with(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", method="HEAD") == (200, b"", True)


@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nX: 1\r\n"])
async def test_a_connection_that_ends_before_a_head_is_no_answer(raw: bytes) -> None:
    with pytest.raises(NoAnswerError):
        await answered_with(raw)


@pytest.mark.parametrize(
    "raw",
    [b"\x16\x03\x01\r\n\r\n", b"nonsense", b"HTTP/1.1 two\r\n\r\n", CHUNKED + b"zz\r\n", CHUNKED + b"1\r\nabc\r\n"],
)
async def test_what_is_no_http_says_so(raw: bytes) -> None:
    with pytest.raises(MalformedHttpError):
        await answered_with(raw)


async def test_odd_and_repeated_fields_are_kept_in_order() -> None:
    async with ScriptedWorker() as worker:
        worker.fault(Faults.headers([("Server", "a"), ("server", "b"), ("X-Note", b"\xe4\xbd\xa0")]))
        answer = await exchange_once(worker.port, json={"text": "hi"})
    assert answer.values("Server") == ["a", "b"]
    assert answer.headers[-1] == (b"X-Note", b"\xe4\xbd\xa0")
    assert answer.raw.endswith(b"\xe4\xbd\xa0\r\n\r\n")
    assert answer.reason == "OK"


async def test_interim_answers_come_before_the_final_one() -> None:
    async with ScriptedWorker() as worker:
        worker.fault(Faults.interim(103, {"Link": "</a>"}, count=2))
        answer = await exchange_once(worker.port, json={"text": "hi"})
    assert [(interim.status, interim.get("link")) for interim in answer.interim] == [(103, "</a>")] * 2
    assert answer.status == 200


async def test_chunks_are_seen_one_by_one_as_they_come() -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        words = worker.say("ab", hold_after=1)
        await client.send(build_request(json={"text": "hi", "stream": True}))
        answer = await client.read_head()
        first = await client.read_piece(answer)
        assert b'"text":"a"' in first
        with pytest.raises(TimeoutError):
            await client.read_piece(answer, timeout_s=0.02)
        words.release()
        seen: list[bytes] = []
        await client.read_body(answer, on_chunk=seen.append)
    assert answer.clean is True
    assert answer.chunk_sizes == [len(first), *map(len, seen)]
    assert answer.body == first + b"".join(seen)
    assert seen[-1] == b"data: [DONE]\n\n"


async def test_a_read_that_timed_out_inside_a_chunk_loses_nothing() -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.fault(Faults.stall())
        await client.send(build_request())
        (request,) = await worker.wait_for_requests(1)
        await request.connection.send(CHUNKED + b"A\r\n01234")
        answer = await client.read_head()
        with pytest.raises(TimeoutError):
            await client.read_piece(answer, timeout_s=0.02)
        await request.connection.send(b"56789\r\n0\r\n\r\n")
        assert await client.read_body(answer) == b"0123456789"
        assert (answer.clean, answer.chunk_sizes) == (True, [10])
        client.leave()


async def test_what_came_before_a_reset_is_kept() -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.fault(Faults.stall())
        await client.send(build_request())
        (request,) = await worker.wait_for_requests(1)
        await request.connection.send(CHUNKED + b"4\r\nkept\r\n")
        answer = await client.read_head()
        assert await client.read_piece(answer) == b"kept"
        request.connection.reset()
        await client.read_body(answer)
        assert (answer.body, answer.clean) == (b"kept", False)


async def test_an_answer_before_the_upload_is_through_is_read() -> None:
    async with ScriptedWorker(receive_buffer_bytes=1 << 14) as worker:
        worker.fault(Faults.early_answer(413, then="read"))
        assert (await exchange_once(worker.port, body=b"x" * (32 << 20))).status == 413
        await worker.wait_until_idle()
        assert worker.requests[0].clean is False


async def test_end_sending_is_a_half_close_and_the_answer_still_comes() -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.handler = reply(b"heard")
        await client.send(build_request(body=b"all"))
        client.end_sending()
        assert (await client.read_answer()).body == b"heard"


@pytest.mark.parametrize("how", ["leave", "reset"])
async def test_leaving_and_resetting_are_felt_by_the_worker(how: str) -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.fault(Faults.stall())
        await client.send(build_request())
        (request,) = await worker.wait_for_requests(1)
        getattr(client, how)()
        assert await request.connection.wait_for_leave(timeout_s=5)
        was_reset = isinstance(request.connection.wire.error, ConnectionResetError)
        assert was_reset is (how == "reset")


async def test_a_client_that_holds_back_stops_the_worker_from_writing() -> None:
    size, piece = 64 << 20, b"x" * (1 << 16)
    async with ScriptedWorker() as worker, RawClient(worker.port, receive_buffer_bytes=1 << 14) as client:
        written = 0

        async def handler(request, connection):  # type: ignore[no-untyped-def]  # as short as a reader's own
            nonlocal written
            await connection.begin(length=size)
            while written < size:
                await connection.write(piece)
                written += len(piece)

        worker.handler = handler
        client.hold_reading()
        await client.send(build_request())
        await worker.wait_for_requests(1)
        seen = -1
        while seen != written:
            seen = written
            await asyncio.sleep(0.05)
        assert written < size // 2
        client.resume_reading()
        answer = await client.read_head()
        counted = 0

        def count(part: bytes) -> None:
            nonlocal counted
            counted += len(part)

        await client.read_body(answer, on_chunk=count, keep=False)
        assert (counted, answer.body, answer.clean) == (size, b"", True)


async def test_build_request_adds_only_what_is_missing() -> None:
    assert build_request("GET", "/a b", host="h") == b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n"
    assert build_request(body=b"x", headers=[("Host", "own")]) == (
        b"POST /generate HTTP/1.1\r\nHost: own\r\nContent-Length: 1\r\n\r\nx"
    )
    assert build_request(json=[1], host="h").endswith(b"Content-Type: application/json\r\nContent-Length: 3\r\n\r\n[1]")
    assert b"Content-Length" not in build_request(headers={"Transfer-Encoding": "chunked"})
    assert b"Content-Length" not in build_request(framed=False, body=b"raw")


async def test_a_stream_cut_at_any_byte_arrives_whole() -> None:
    whole = 'data: {"t":"你好🦀"}\r\n\r\n: ping\n\ndata: [DONE]\n\n'.encode()
    async with ScriptedWorker() as worker:
        worker.handler = reply_pieces([whole[at : at + 1] for at in range(len(whole))])
        answer = await exchange_once(worker.port)
    assert (answer.body, answer.chunk_sizes) == (whole, [1] * len(whole))


async def test_nobody_there_is_a_refusal() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            await exchange_once(bound.getsockname()[1])
