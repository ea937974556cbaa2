"""Each fault is seen by a client as what it says, and the next request is normal again."""

import asyncio
from typing import Any

import aiohttp
import pytest

from router_core.testing import (
    ODD_JSON,
    Connection,
    Fault,
    Faults,
    MalformedHttpError,
    NoAnswerError,
    RawAnswer,
    RawClient,
    ScriptedRequest,
    ScriptedWorker,
    build_request,
    exchange_once,
    reply_pieces,
)

WHOLE = {"text": "hi"}
STREAM = {"text": "hi", "stream": True}


async def ask_under(fault: Fault, asked: dict[str, Any], **options: Any) -> RawAnswer:
    """The answer under a fault; afterwards the worker must be normal."""
    async with ScriptedWorker() as worker:
        worker.fault(fault)
        answer = await exchange_once(worker.port, json=asked, **options)
        after = await exchange_once(worker.port, json=asked)
        assert (after.status, after.clean) == (200, True)
        return answer


@pytest.mark.parametrize("reset", [False, True])
async def test_close_before_answer(reset: bool) -> None:
    async with ScriptedWorker() as worker:
        worker.fault(Faults.close_before_answer(reset=reset), times=2)
        for _ in range(2):
            with pytest.raises(NoAnswerError):
                await exchange_once(worker.port, json=WHOLE)
        assert (await exchange_once(worker.port, json=WHOLE)).status == 200
        assert [request.clean for request in worker.requests] == [True] * 3


@pytest.mark.parametrize("reset", [False, True])
async def test_close_amid_a_body_with_length(reset: bool) -> None:
    answer = await ask_under(Faults.close_amid(after_bytes=0 if reset else 30, reset=reset), WHOLE)
    assert (answer.status, answer.body_framing, answer.clean) == (200, "length", False)
    assert len(answer.body) == (0 if reset else 30)


async def test_close_amid_a_chunked_body_after_whole_events() -> None:
    answer = await ask_under(Faults.close_amid(after_pieces=2), STREAM)
    assert (answer.body_framing, answer.clean, len(answer.chunk_sizes)) == ("chunked", False, 2)
    assert answer.body.endswith(b"\n\n")


async def test_close_amid_a_chunk() -> None:
    answer = await ask_under(Faults.close_amid(after_bytes=10), STREAM)
    assert (answer.body, answer.clean) == (b'data: {"te', False)
    assert answer.chunk_sizes[0] > 10


async def test_close_right_after_the_head() -> None:
    answer = await ask_under(Faults.close_amid(), STREAM)
    assert (answer.status, answer.body, answer.clean) == (200, b"", False)


async def test_a_fault_that_comes_too_late_is_an_error_of_the_test() -> None:
    with pytest.raises(ValueError, match="lower after_pieces=1000"):
        async with ScriptedWorker() as worker:
            worker.fault(Faults.close_amid(after_pieces=1000))
            await exchange_once(worker.port, json=STREAM)


async def test_close_after_answer_is_not_announced() -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.fault(Faults.close_after_answer())
        answer = await client.request(json=WHOLE)
        assert (answer.clean, answer.get("connection")) == (True, None)
        await client.wait_closed()


async def test_stall_reads_the_request_and_never_answers() -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.fault(Faults.stall())
        await client.send(build_request(json=WHOLE))
        (request,) = await worker.wait_for_requests(1)
        with pytest.raises(TimeoutError):
            await client.read_head(timeout_s=0.05)
        assert worker.live == 1
        client.leave()
        await worker.wait_until_idle()
        assert request.peer_left


async def test_a_request_under_a_fault_is_waited_for_until_its_body_has_come() -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.fault(Faults.stall())
        upload = build_request(body=b"in two parts")
        await client.send(upload[:-5])
        await worker.wait_until(lambda: worker.live == 1)
        waiting = asyncio.create_task(worker.wait_for_requests(1))
        await asyncio.wait([waiting], timeout=0.02)
        assert not waiting.done()
        await client.send(upload[-5:])
        (request,) = await waiting
        assert request.body == b"in two parts"


async def test_stall_amid_falls_silent_after_the_first_events() -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.fault(Faults.stall_amid(after_pieces=1))
        await client.send(build_request(json=STREAM))
        answer = await client.read_head()
        assert await client.read_piece(answer)
        with pytest.raises(TimeoutError):
            await client.read_piece(answer, timeout_s=0.05)
        client.leave()
        await worker.wait_until_idle()


async def test_stop_reading_holds_the_upload_back() -> None:
    go_on = asyncio.Event()
    async with ScriptedWorker(receive_buffer_bytes=1 << 14) as worker, RawClient(worker.port) as client:
        worker.fault(Faults.stop_reading(go_on))
        sending = asyncio.create_task(client.send(build_request(target="/x", body=b" " * (32 << 20))))
        await worker.wait_until(lambda: len(worker.requests) == 1)
        await asyncio.wait([sending], timeout=0.1)
        assert not sending.done()
        go_on.set()
        await sending
        assert (await client.read_answer()).status == 400


async def test_hold_and_delay_answer_later() -> None:
    go_on = asyncio.Event()
    async with ScriptedWorker() as worker:
        worker.fault(Faults.hold(go_on), Faults.delay(0.01))
        asking = asyncio.create_task(exchange_once(worker.port, json=WHOLE))
        await worker.wait_for_requests(1)
        assert not asking.done()
        go_on.set()
        assert (await asking).status == 200


async def test_slow_sends_small_pieces() -> None:
    answer = await ask_under(Faults.slow(piece_bytes=100, interval_s=0.001), STREAM)
    assert answer.clean is True
    assert max(answer.chunk_sizes) <= 100


async def test_chunked_turns_a_whole_answer_into_chunks() -> None:
    answer = await ask_under(Faults.chunked(piece_bytes=50), WHOLE)
    assert (answer.body_framing, answer.clean, answer.chunk_sizes[0]) == ("chunked", True, 50)
    assert answer.json()["text"]


@pytest.mark.parametrize("asked", [WHOLE, STREAM])
async def test_close_delimited_has_no_framing_and_no_verdict(asked: dict[str, Any]) -> None:
    answer = await ask_under(Faults.close_delimited(), asked)
    assert (answer.body_framing, answer.clean) == ("close", None)
    assert answer.body.endswith((b"[DONE]\n\n", b"}"))


async def test_wrong_length_is_too_long_or_too_short() -> None:
    long = await ask_under(Faults.wrong_length(by=7), WHOLE)
    assert (long.clean, len(long.body)) == (False, int(long.get("content-length") or 0) - 7)
    short = await ask_under(Faults.wrong_length(by=-7), WHOLE)
    assert short.clean is True
    assert not short.body.endswith(b"}")


async def test_status_has_its_headers_and_body() -> None:
    busy = await ask_under(Faults.status(429, {"Retry-After": "1"}), WHOLE)
    assert (busy.status, busy.get("retry-after")) == (429, "1")
    assert busy.json()["error"]["code"] == 429
    assert (await ask_under(Faults.status(500, body=b"oops"), WHOLE)).body == b"oops"


async def test_garbage_is_no_http() -> None:
    with pytest.raises(MalformedHttpError):
        await ask_under(Faults.garbage(), WHOLE)


async def test_odd_bytes_arrive_as_they_are() -> None:
    assert (await ask_under(Faults.odd_bytes(), WHOLE)).body == ODD_JSON


@pytest.mark.parametrize("then", ["read", "close", "reset"])
async def test_early_answer_comes_before_the_upload_is_whole(then: Any) -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.fault(Faults.early_answer(413, then=then))
        upload = build_request(body=b"x" * 1000)
        await client.send(upload[:-500])
        assert (await client.read_answer()).status == 413
        if then == "read":
            await client.send(upload[-500:])
            assert (await client.request(json=WHOLE)).status == 200
            assert worker.requests[0].clean is True
        else:
            await client.wait_closed()
            with pytest.raises(ConnectionError):
                await client.send(upload[-500:])
                await client.read_answer()
            assert worker.requests[0].clean is None


async def test_huge_is_as_large_as_it_says_and_is_not_held() -> None:
    async with ScriptedWorker() as worker, RawClient(worker.port) as client:
        worker.fault(Faults.huge(64))
        await client.send(build_request(json=WHOLE))
        answer = await client.read_head()
        largest = counted = 0

        def count(piece: bytes) -> None:
            nonlocal largest, counted
            largest, counted = max(largest, len(piece)), counted + len(piece)

        await client.read_body(answer, on_chunk=count, keep=False, timeout_s=30)
        assert answer.clean is True
        assert 64 << 20 <= counted < (64 << 20) + 1000
        assert largest < 1 << 20


async def test_a_small_huge_answer_is_json() -> None:
    answer = await ask_under(Faults.huge(1), WHOLE)
    assert len(answer.json()["meta_info"]["routed_experts"]) == 1 << 20


async def test_faults_nest() -> None:
    answer = await ask_under_both(
        Faults.interim(102), Faults.slow(piece_bytes=7, interval_s=0), Faults.close_amid(after_pieces=2)
    )
    assert [interim.status for interim in answer.interim] == [102]
    assert (answer.clean, max(answer.chunk_sizes)) == (False, 7)


async def ask_under_both(*faults: Fault) -> RawAnswer:
    async with ScriptedWorker() as worker:
        worker.fault(*faults)
        return await exchange_once(worker.port, json=STREAM)


async def test_a_fault_meets_only_the_requests_it_is_meant_for() -> None:
    async with ScriptedWorker() as worker:
        worker.fault(Faults.status(503), times=None, when=lambda request: request.get("x-session-id") == "bad")
        good = await exchange_once(worker.port, json=WHOLE)
        bad = [(await exchange_once(worker.port, headers={"X-Session-Id": "bad"}, json=WHOLE)).status for _ in range(2)]
        assert (good.status, bad) == (200, [503, 503])
        worker.clear_faults()
        assert (await exchange_once(worker.port, headers={"X-Session-Id": "bad"}, json=WHOLE)).status == 200


async def test_faults_bend_a_handler_of_ones_own() -> None:
    async with ScriptedWorker() as worker:
        worker.handler = reply_pieces([b"one", b"two", b"three"])
        worker.fault(Faults.close_amid(after_pieces=1))
        assert (await exchange_once(worker.port)).body == b"one"


async def test_a_handler_stands_for_any_fault() -> None:
    def half_head(handler: Any) -> Any:
        async def faulty(request: ScriptedRequest, connection: Connection) -> bool:
            await connection.send(b"HTTP/1.1 200 OK\r\nConte")
            return False

        return faulty

    async with ScriptedWorker() as worker:
        worker.fault(half_head)
        with pytest.raises(NoAnswerError) as caught:
            await exchange_once(worker.port, json=WHOLE)
        assert caught.value.partial == b"HTTP/1.1 200 OK\r\nConte"


async def test_aiohttp_sees_a_payload_error_where_the_body_is_cut() -> None:
    async with ScriptedWorker() as worker, aiohttp.ClientSession() as session:
        for asked in (WHOLE, STREAM):
            worker.fault(Faults.close_amid(after_bytes=25))
            async with session.post(f"{worker.url}/generate", json=asked) as answer:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await answer.read()
