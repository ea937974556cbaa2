"""Calls to workers beside the data traffic never raise for a worker's fault."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from router_core import ControlClient, Worker
from router_core.control import MAX_ANSWER_BYTES
from router_core.testing import Connection, Faults, ScriptedRequest, ScriptedWorker, reply


def worker_at(url: str, api_key: str | None = None) -> Worker:
    worker = Worker(id="w", base_id="w", url=url, key=url, base_url=url, dp_rank=None, generation=1)
    worker.api_key = api_key
    return worker


@pytest.fixture
async def control() -> AsyncIterator[ControlClient]:
    client = ControlClient(connect_timeout_s=2)
    yield client
    await client.aclose()


async def test_an_answer_is_status_and_body(control: ControlClient) -> None:
    async with ScriptedWorker() as worker:
        worker.handler = reply(b'{"a":1}', 201)
        answer = await control.call(
            worker_at(worker.url + "/base", "sk-1"),
            "POST",
            "/verb?x=%2F",
            timeout_s=5,
            body=b"body",
            headers={"X-A": "1"},
        )
        assert (answer.status, answer.body, answer.json(), answer.is_ok) == (201, b'{"a":1}', {"a": 1}, True)
        request = worker.requests[0]
        assert (request.method, request.target, request.body) == ("POST", b"/base/verb?x=%2F", b"body")
        assert (request.get("x-a"), request.get("authorization")) == ("1", "Bearer sk-1")


async def test_every_call_has_a_connection_of_its_own(control: ControlClient) -> None:
    async with ScriptedWorker() as worker:
        worker.handler = reply()
        for _ in range(3):
            await control.call(worker_at(worker.url), "GET", "/verb", timeout_s=5)
        assert [request.connection_number for request in worker.requests] == [1, 2, 3]


@pytest.mark.parametrize(
    "fault",
    [Faults.close_before_answer(), Faults.close_before_answer(reset=True), Faults.garbage(), Faults.close_amid()],
)
async def test_a_worker_that_fails_is_status_0_with_a_reason(control: ControlClient, fault: object) -> None:
    async with ScriptedWorker() as worker:
        worker.handler = reply(b"body")
        worker.fault(fault)  # type: ignore[arg-type]
        answer = await control.call(worker_at(worker.url), "POST", "/verb", timeout_s=5)
        assert (answer.status, answer.is_ok, answer.refused, answer.timed_out) == (0, False, False, False)
        assert answer.error


async def test_a_refusal_says_so(control: ControlClient) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answer = await control.call(worker_at(f"http://127.0.0.1:{port}"), "GET", "/health", timeout_s=5)
    assert (answer.status, answer.refused) == (0, True)


async def test_a_worker_that_does_not_answer_in_time_is_given_up(control: ControlClient) -> None:
    async with ScriptedWorker() as worker:
        for fault in (Faults.stall(), Faults.stall_amid(after_bytes=1)):
            worker.handler = reply(b"body")
            worker.fault(fault)
            answer = await control.call(worker_at(worker.url), "GET", "/verb", timeout_s=0.1)
            assert (answer.status, answer.timed_out, answer.error) == (0, True, "no answer within 0.1 s")
        await worker.wait_until_idle()


async def test_an_answer_without_end_is_cut(control: ControlClient) -> None:
    async def endless(request: ScriptedRequest, connection: Connection) -> bool:
        await connection.begin()
        with contextlib.suppress(ConnectionResetError):
            while True:
                await connection.write(bytes(1 << 20))
        return False

    async with ScriptedWorker() as worker:
        worker.handler = endless
        answer = await control.call(worker_at(worker.url), "GET", "/verb", timeout_s=20)
        assert MAX_ANSWER_BYTES <= len(answer.body) < 2 * MAX_ANSWER_BYTES
        await worker.wait_until_idle()


async def test_a_redirect_is_not_followed_and_no_json_is_none(control: ControlClient) -> None:
    async with ScriptedWorker() as worker:
        worker.handler = reply(b"<html>", 302, [("Location", "/elsewhere")])
        answer = await control.call(worker_at(worker.url), "GET", "/verb", timeout_s=5)
        assert (answer.status, answer.is_ok, answer.json()) == (302, False, None)
        assert len(worker.requests) == 1


async def test_a_call_may_be_cancelled(control: ControlClient) -> None:
    async with ScriptedWorker() as worker:
        worker.fault(Faults.stall())
        calling = asyncio.create_task(control.call(worker_at(worker.url), "GET", "/verb", timeout_s=60))
        await worker.wait_for_requests(1)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await worker.wait_until_idle()
