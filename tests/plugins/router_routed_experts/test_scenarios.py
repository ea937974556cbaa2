"""What must become of the experts that a worker tells, or does not, over real HTTP."""

from __future__ import annotations

import asyncio
import base64
import gzip
import logging
from typing import Any

import numpy as np
import orjson
import pytest

from router_core import ROUTED_EXPERTS, Exchange, hookimpl
from router_core.testing import ScriptedWorker, exchange_once, reply, reply_json

from .answers import raw_text
from .over_http import EXPERTS, LAYERS, TOP_K, Routed, routed, rows_of

PROMPT, OUTPUT = 5, 4
NUMBERED = {"layers": LAYERS, "top_k": TOP_K}


def numbered(start: int, stop: int) -> np.ndarray:
    """Row r, layer l, place k holds 100 r + 10 l + k, so that a shifted row shows."""
    rows, layers, places = np.meshgrid(range(start, stop), range(LAYERS), range(TOP_K), indexing="ij")
    return 100 * rows + 10 * layers + places


def answer(experts: Any, *, rid: str = "r", prompt: int = PROMPT, output: int = OUTPUT, **meta: Any) -> dict[str, Any]:
    told = {
        "id": rid,
        "finish_reason": {"type": "stop"},
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "routed_experts": experts,
        **meta,
    }
    return {"text": "x" * output, "output_ids": list(range(50, 50 + output)), "meta_info": told}


async def passed(routed: Routed, told: dict[str, Any], **body: Any) -> bytes:
    """Sends a request whose client asks for experts itself; the worker's answer must come byte for byte."""
    routed.worker.handler = reply_json(told)
    asked = {"input_ids": list(range(told["meta_info"]["prompt_tokens"])), "return_routed_experts": True, **body}
    got = await exchange_once(routed.port, json=asked)
    assert (got.status, got.body) == (200, orjson.dumps(told))
    assert routed.worker.requests[-1].body == orjson.dumps(asked)
    return got.body


async def test_a_full_answer_has_a_row_for_each_token_but_the_last() -> None:
    async with routed(settings=NUMBERED) as router:
        await passed(router, answer(raw_text(numbered(0, 8))))
        assert (await router.rows("r") == numbered(0, 8)).all()


async def test_the_field_reaches_the_client_byte_for_byte_however_it_is_spelt() -> None:
    async with routed(settings=NUMBERED) as router:
        text = raw_text(numbered(0, 8)).replace("/", "\\/")
        body = b'{ "meta_info" : {"routed_experts"  :"%s", "prompt_tokens":5,"completion_tokens":4 ,"id":"r"},"n":NaN }'
        raw = body.replace(b"NaN", b"1e-05") % text.encode()

        async def handler(request, connection):
            return await connection.answer(raw)

        router.worker.handler = handler
        got = await exchange_once(router.port, json={"input_ids": [1] * 5, "return_routed_experts": True})
        assert got.body == raw
        assert (await router.rows("r") == numbered(0, 8)).all()


@pytest.mark.parametrize(("start", "stop"), [(3, 8), (0, 9), (0, 7)])
async def test_too_few_or_too_many_rows_are_reported_and_not_filled_up(start: int, stop: int, caplog) -> None:
    async with routed(settings=NUMBERED) as router:
        with caplog.at_level(logging.WARNING):
            await passed(router, answer(raw_text(numbered(start, stop))))
        reason = f"row_count: {stop - start} rows came, not 8 rows for 9 tokens from row 0"
        assert await router.reason("r") == reason
        [told] = [record.getMessage() for record in caplog.records if "incomplete, worker" in record.getMessage()]
        assert told == f"routed experts of r are incomplete, worker {router.worker.url}: {reason}"
        count = f'incomplete_total{{reason="row_count",worker="{router.worker.url}"}} 1'
        assert count in router.metrics()
        assert (await router.rows("r", "?partial=true")).shape == (0, 0, 0)


async def test_rows_that_were_asked_for_from_a_row_on_belong_there() -> None:
    async with routed(settings=NUMBERED) as router:
        await passed(router, answer(raw_text(numbered(3, 8))), routed_experts_start_len=3)
        assert (await router.rows("r") == numbered(3, 8)).all()
        assert (await router.show("r")).get("x-router-first-row") == "3"


async def test_a_dtype_that_is_stated_is_kept_where_a_byte_is_too_small() -> None:
    async with routed(settings=NUMBERED) as router:
        ids = np.arange(300, 332).reshape(8, LAYERS, TOP_K)
        await passed(router, answer(raw_text(ids, "<u2"), routed_experts_dtype="uint16"))
        rows = await router.rows("r")
        assert rows.dtype == np.uint16
        assert (rows == ids).all()


async def test_what_is_no_base64_passes_and_is_marked() -> None:
    async with routed(settings=NUMBERED) as router:
        await passed(router, answer("%%%not base64%%%"))
        assert (await router.reason("r")).startswith("not_base64: ")


async def test_the_object_form_is_kept_as_it_is() -> None:
    async with routed(settings=NUMBERED) as router:
        told = {"data": raw_text(numbered(0, 8)), "shape": [8, LAYERS, TOP_K], "start": 0}
        await passed(router, answer(told))
        assert (await router.rows("r") == numbered(0, 8)).all()
        await passed(router, answer({**told, "shape": [7, LAYERS, TOP_K]}, rid="r2"))
        assert (await router.reason("r2")).startswith("wrong_size: ")


@pytest.mark.parametrize("experts", [None, ...])
async def test_none_although_asked_is_reported(experts: Any) -> None:
    async with routed(settings=NUMBERED) as router:
        told = answer(experts)
        if experts is ...:
            del told["meta_info"]["routed_experts"]
        await passed(router, told)
        assert await router.reason("r") == "missing: routed experts were asked for and none came"


async def test_an_abort_without_a_token_is_no_fault() -> None:
    async with routed(settings=NUMBERED) as router:
        await passed(router, answer(None, output=0, finish_reason={"type": "abort", "message": "x"}))
        assert (await router.rows("r")).shape == (0, 0, 0)
        assert "incomplete_total{" not in router.metrics()


async def test_the_second_turns_rows_join_the_firsts_without_a_gap() -> None:
    async with routed(settings=NUMBERED) as router:
        headers = {"x-session-id": "s"}
        prompt = [1, 2, 3, 4, 5]
        sampled = list(range(50, 54))

        async def turn(told: dict[str, Any], ids: list[int]) -> dict[str, Any]:
            router.worker.handler = reply_json(told)
            got = await exchange_once(router.port, headers=headers, json={"input_ids": ids})
            assert "routed_experts" not in got.json()["meta_info"]
            return router.sent

        asked = await turn(answer(raw_text(numbered(0, 8)), rid="t1"), prompt)
        assert "routed_experts_start_len" not in asked
        second = [*prompt, *sampled, 7, 8, 9]
        asked = await turn(answer(raw_text(numbered(8, 14)), rid="t2", prompt=12, output=3), second)
        assert asked["routed_experts_start_len"] == 8
        assert (await router.rows("t2") == numbered(0, 14)).all()


async def test_a_large_answer_stalls_nobody_and_passes_byte_for_byte() -> None:
    async with routed(settings={"layers": 48, "top_k": 8}) as router:
        rows = 20 * 2**20 * 3 // 4 // (48 * 8 * 4)
        source = np.random.default_rng(0)
        experts = source.integers(1, 255, (rows, 48, 8), dtype=np.int32)
        told = answer(base64.b64encode(experts.tobytes()).decode(), prompt=rows - 99, output=100)
        router.worker.handler = reply_json(told)

        async def large() -> bytes:
            asked = {"input_ids": [1] * (rows - 99), "return_routed_experts": True}
            return (await exchange_once(router.port, json=asked, timeout_s=30)).body

        running = asyncio.create_task(large())
        others = 0
        while not running.done():
            assert (await exchange_once(router.port, "GET", "/health")).status == 200
            others += 1
        assert await running == orjson.dumps(told)
        assert others > 3
        assert (await router.rows("r") == experts).all()


async def test_ids_that_are_not_all_that_were_sampled_are_no_trajectory_to_go_on_with() -> None:
    """A worker whose streams are not cumulative tells in its last event only the last ids."""
    async with routed(settings=NUMBERED) as router:
        told = answer(raw_text(numbered(0, 8)), rid="r1")
        events = [dict(told, output_ids=[50, 51, 52], meta_info={**told["meta_info"], "finish_reason": None})]
        events[0]["meta_info"].pop("routed_experts")
        events.append(dict(told, output_ids=[53]))
        body = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"
        router.worker.handler = reply(body, content_type="text/event-stream")
        session = {"x-session-id": "s"}
        await router.ask("/generate", session, input_ids=[0, 1, 2, 3, 4], stream=True)
        assert (await router.rows("r1") == numbered(0, 8)).all()
        # another prompt, whose token 5 is what was told last and not what was sampled first
        later = np.concatenate([numbered(0, 5), numbered(5, 9) + 7])
        router.worker.handler = reply_json(answer(raw_text(later), rid="r2", prompt=7, output=3))
        await router.ask("/generate", session, input_ids=[0, 1, 2, 3, 4, 53, 60])
        assert (await router.rows("r2") == later).all()


async def test_a_compressed_answer_passes_as_it_is_and_is_marked() -> None:
    async with routed(settings=NUMBERED) as router:
        body = gzip.compress(orjson.dumps(answer(raw_text(numbered(0, 8)))))
        router.worker.handler = reply(body, headers=[("content-encoding", "gzip")])
        for own in ({}, {"return_routed_experts": True}):
            got = await exchange_once(router.port, json={"input_ids": [0, 1, 2, 3, 4], "rid": "r", **own})
            assert got.body == body
            assert got.get("content-encoding") == "gzip"
            assert (await router.reason("r")).startswith("unreadable: ")


@pytest.mark.parametrize("told", ["1234", "0", "AAAA"])
async def test_a_name_spelt_with_an_escape_is_not_taken_for_another_value(told: str) -> None:
    async with routed(settings=NUMBERED) as router:
        body = orjson.dumps(answer(told)).replace(b"routed_experts", b"routed\\u005fexperts")
        body = body[:-1] + b',"other":{"routed_experts":"' + raw_text(numbered(0, 8)).encode() + b'"}}'
        router.worker.handler = reply(body)
        got = await router.ask("/generate", input_ids=[0, 1, 2, 3, 4], rid="r", return_routed_experts=True)
        assert got.body == body
        await router.show("r", 409)


async def test_of_two_members_of_one_name_the_last_one_counts_as_for_every_reader() -> None:
    async with routed(settings=NUMBERED) as router:
        first, last = raw_text(numbered(0, 8)), raw_text(numbered(0, 8) + 7)
        both = f'"routed_experts":"{first}","routed_experts":"{last}"'.encode()
        body = orjson.dumps(answer("HERE")).replace(b'"routed_experts":"HERE"', both)
        router.worker.handler = reply(body)
        await router.ask("/generate", input_ids=[0, 1, 2, 3, 4], return_routed_experts=True)
        assert (await router.rows("r") == numbered(0, 8) + 7).all()


async def test_a_request_that_is_tried_again_is_asked_for_the_same_and_shows_no_more() -> None:
    enabled = ("retry", "routed_experts", "least_inflight")
    async with routed(enabled=enabled, plugins={"retry": {}}) as router, ScriptedWorker() as second:
        await exchange_once(router.port, target=f"/add_worker?url={second.url}")
        second.engine.experts = EXPERTS
        for worker in (router.worker, second):
            worker.say("xxx", ids=[21, 22, 23], times=None)
        router.worker.refuse()
        for number in range(4):  # both are tried first in turn
            shown = await router.ask("/generate", input_ids=[11, 12, 13], rid=f"r{number}")
            assert b"routed_experts" not in shown.body
            assert (await router.rows(f"r{number}") == rows_of([11, 12, 13, 21, 22, 23])).all()
            assert second.requests[-1].json()["return_routed_experts"] is True
        assert shown.get("x-router-worker") == second.url


async def test_the_rows_are_there_once_the_client_has_the_last_byte() -> None:
    seen = []

    class Watch:
        @hookimpl
        def response_chunk(self, exchange: Exchange, chunk: bytes) -> None:
            seen.append((chunk[-1:], exchange.state.get(ROUTED_EXPERTS) is not None))

    async with routed(settings=NUMBERED, classes=[Watch]) as router:
        await passed(router, answer(raw_text(numbered(0, 8))))
        assert seen[-1] == (b"}", True)
        router.worker.handler = reply(b"")
        await router.ask("/generate", input_ids=[1, 2], rid="none", return_routed_experts=True)
        assert (await router.reason("none")).startswith("unreadable: ")
