"""An answer that is no abort passes as it comes; one that may be is kept whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_partial_rollout.opening import Opening

from router_core.testing import Connection, RawClient, ScriptedRequest, ScriptedWorker, build_request, send_json
from router_core.testing.router import running_router

ASK = {"input_ids": [1, 2, 3], "return_logprob": True, "sampling_params": {"max_new_tokens": 8}}
ENABLED = ["partial_rollout", "least_inflight"]


async def pieces_of(body: bytes, cuts: Sequence[int]) -> AsyncIterator[bytes]:
    for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True):
        yield body[start:stop]


def generated(reason: Any, **more: Any) -> dict[str, Any]:
    return {
        "text": 'he said "finish_reason": "abort"',
        "output_ids": [7],
        "meta_info": {"finish_reason": reason, **more},
    }


ANSWERS = [
    (generated({"type": "stop", "matched": 9}), True),
    (generated({"type": "length", "length": 1}, routed_experts="AAAA"), True),
    (generated({"type": "abort", "message": "Aborted"}), False),
    (generated(None), False),
    ({"text": "", "meta_info": {}}, False),
    ({"choices": [{"index": 0, "text": "", "finish_reason": "stop", "token_ids": [7]}]}, True),
    ({"choices": [{"index": 0, "text": "", "finish_reason": "abort", "token_ids": [7]}]}, False),
    ({"choices": [{"message": {"content": '\\"finish_reason\\": "x'}, "finish_reason": "abort"}]}, False),
]


@pytest.mark.parametrize(("answer", "passes"), ANSWERS)
@given(cuts=st.lists(st.integers(0, 200), max_size=5).map(sorted))
def test_the_first_finish_reason_decides_wherever_the_body_is_cut(
    answer: dict[str, Any], passes: bool, cuts: list[int]
) -> None:
    async def read() -> None:
        body = json.dumps(answer).encode()
        opening = Opening(pieces_of(body, [min(cut, len(body)) for cut in cuts]))
        assert await opening.is_no_abort() is passes
        assert b"".join([chunk async for chunk in opening.all()]) == body

    asyncio.run(read())


def test_a_reason_spelt_with_escapes_is_not_taken_for_another() -> None:
    async def read() -> None:
        opening = Opening(pieces_of(b'{"meta_info":{"finish_reason":{"type":"\\u0061bort"},"x":1}}', []))
        assert not await opening.is_no_abort()

    asyncio.run(read())


async def test_the_client_has_what_came_before_the_worker_has_said_all() -> None:
    answer = generated({"type": "stop", "matched": 9}, routed_experts="A" * 400_000)
    body = json.dumps(answer).encode()
    goes_on = asyncio.Event()

    async def handle(request: ScriptedRequest, connection: Connection) -> bool:
        if request.path != "/generate":
            return await send_json(connection, {})
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        await connection.send(head + body[:200_000])
        await goes_on.wait()
        await connection.send(body[200_000:])
        return True

    async with ScriptedWorker() as worker, running_router([worker.url], enabled=ENABLED) as router:
        worker.handler = handle
        async with RawClient(router.port) as client:
            await client.send(build_request("POST", "/generate", host="router", json=ASK))
            answer_read = await client.read_head()
            read = b""
            while len(read) < 100_000:
                read += (piece := await client.read_piece(answer_read))
                assert piece
            goes_on.set()
            while piece := await client.read_piece(answer_read):
                read += piece
    assert answer_read.get("content-length") == str(len(body))
    assert read == body
