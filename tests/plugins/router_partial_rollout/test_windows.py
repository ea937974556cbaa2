"""Which aborts are continued, and which are the end."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from router_core.reference_engine import running_engine
from router_core.testing import (
    Connection,
    RawAnswer,
    ScriptedRequest,
    ScriptedWorker,
    exchange_once,
    send_json,
)
from router_core.testing.router import RunningRouter, running_router

ENABLED = ["engine_control", "partial_rollout", "weight_version", "least_inflight"]
ASK = {"input_ids": [1, 2, 3], "rid": "r", "return_logprob": True, "sampling_params": {"max_new_tokens": 8}}


@asynccontextmanager
async def pool(
    count: int = 1, *, enabled: list[str] = ENABLED, **settings: Any
) -> AsyncIterator[tuple[RunningRouter, list[ScriptedWorker]]]:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker()) for _ in range(count)]
        router = await stack.enter_async_context(
            running_router(
                [worker.url for worker in workers],
                enabled=enabled,
                plugins={"partial_rollout": settings, "weight_version": {"version_path": ""}},
            )
        )
        yield router, workers


def answer(ids: list[int], finish: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {
        "text": "",
        "output_ids": ids,
        "meta_info": {
            "id": "r",
            "finish_reason": finish,
            "prompt_tokens": 3,
            "completion_tokens": len(ids),
            "output_token_logprobs": [[-1.0, token, None] for token in ids],
            **meta,
        },
    }


ABORTED = {"type": "abort", "message": "Aborted"}
STOPPED = {"type": "stop", "matched": 9}


def scripted(worker: ScriptedWorker, *answers: dict[str, Any], before: Callable[[], Any] | None = None) -> list[Any]:
    """The worker gives these answers to ``/generate``, one after another; what it was asked is returned."""
    asked: list[Any] = []
    left = list(answers)

    async def handle(request: ScriptedRequest, connection: Connection) -> bool:
        if request.path != "/generate":
            return await send_json(connection, {"success": True})
        asked.append(request.json())
        if before is not None:
            await before()
        if not left:
            connection.close()
            return False
        return await send_json(connection, left.pop(0))

    worker.handler = handle
    return asked


async def call(router: RunningRouter, target: str, json: object = None) -> RawAnswer:
    told = await exchange_once(router.port, target=target, json=json)
    assert told.status == 200, told.body
    return told


async def ask(router: RunningRouter, **more: Any) -> dict[str, Any]:
    headers = [(name.replace("_", "-"), value) for name, value in more.pop("headers", {}).items()]
    told = await exchange_once(router.port, headers=headers, json={**ASK, **more})
    assert told.status == 200, told.body
    result: dict[str, Any] = told.json()
    return result


async def until(is_true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110 - the router sets no event for tests
            await asyncio.sleep(0.001)


async def test_an_abort_outside_a_window_is_final() -> None:
    async with pool() as (router, [worker]):
        asked = scripted(worker, answer([5], ABORTED))
        told = await ask(router)
        assert told == answer([5], ABORTED)
        assert len(asked) == 1


@pytest.mark.parametrize("value", ["true", "TRUE"])
async def test_a_request_may_have_every_abort_continued(value: str) -> None:
    async with pool() as (router, [worker]):
        asked = scripted(worker, answer([5, 6], ABORTED), answer([7, 9], STOPPED))
        told = await ask(router, headers={"x_partial_rollout": value})
        assert told["output_ids"] == [5, 6, 7, 9]
        assert told["meta_info"]["finish_reason"] == STOPPED
        assert asked[1]["input_ids"] == [1, 2, 3, 5, 6]
        assert asked[1]["sampling_params"] == {"max_new_tokens": 6}
        assert {key: asked[1][key] for key in ("rid", "return_logprob")} == {"rid": "r", "return_logprob": True}
        assert worker.requests[0].get("x-partial-rollout") is None


async def test_a_request_may_forbid_it() -> None:
    async with pool(when="always") as (router, [worker]):
        asked = scripted(worker, answer([5], ABORTED))
        await ask(router, headers={"x_partial_rollout": "false"})
        assert len(asked) == 1
        wrong = await exchange_once(router.port, headers=[("x-partial-rollout", "maybe")], json=ASK)
        assert (wrong.status, wrong.json()["error"]["param"]) == (400, "x-partial-rollout")


async def test_a_profile_may_have_every_abort_continued() -> None:
    profiles = {"async": {"plugins": {"partial_rollout": {"when": "always"}}}}
    async with (
        ScriptedWorker() as worker,
        running_router([worker.url], enabled=["partial_rollout"], profiles=profiles) as router,
    ):
        asked = scripted(worker, answer([5], ABORTED), answer([5, 6], ABORTED), answer([9], STOPPED))
        assert (await ask(router))["output_ids"] == [5]
        told = await ask(router, headers={"x_router_profile": "async"})
        assert told["output_ids"] == [5, 6, 9]
        assert len(asked) == 3


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("/routing/pause?wait=true", "/routing/resume"),
        ("/pause_generation", "/continue_generation"),
        ("/pause", "/resume"),
    ],
)
async def test_an_abort_in_a_pause_is_continued_after_it(begin: str, end: str) -> None:
    async with pool() as (router, [worker]):
        begun = asyncio.Event()

        async def pause_once() -> None:
            if not begun.is_set():
                await call(router, begin)
                begun.set()

        asked = scripted(worker, answer([5], ABORTED), answer([9], STOPPED), before=pause_once)
        running = asyncio.create_task(ask(router))
        await begun.wait()
        if begin.startswith("/routing"):
            await until(lambda: len(router.application.holds) == 1)
            assert len(asked) == 1
        await call(router, end)
        assert (await running)["output_ids"] == [5, 9]
        assert len(asked) == 2


async def test_an_abort_by_an_update_is_continued() -> None:
    async with pool(enabled=[*ENABLED[:2], "least_inflight"]) as (router, [worker]):
        asked = scripted(
            worker,
            answer([5], ABORTED),
            answer([9], STOPPED),
            before=lambda: call(router, "/update_weight_version", {"new_version": "2", "abort_all_requests": True}),
        )
        told = await ask(router)
        assert told["output_ids"] == [5, 9]
        assert len(asked) == 2


@pytest.mark.parametrize("body", [{"rid": "r"}, {"abort_all": True}])
async def test_an_abort_that_was_asked_for_is_final_also_in_a_pause(body: dict[str, Any]) -> None:
    async with pool() as (router, [worker]):

        async def abort() -> None:
            await call(router, "/routing/pause")
            await call(router, "/abort_request", body)

        asked = scripted(worker, answer([5], ABORTED), before=abort)
        assert await ask(router) == answer([5], ABORTED)
        assert len(asked) == 1


async def test_an_abort_that_is_asked_for_between_two_workers_ends_it_with_what_there_is() -> None:
    async with pool() as (router, [worker]):
        asked = scripted(worker, answer([5, 6], ABORTED), before=lambda: call(router, "/routing/pause"))
        running = asyncio.create_task(ask(router))
        await until(lambda: len(router.application.holds) == 1)
        await call(router, "/abort_request", {"rid": "r"})
        told = await running
        assert told["output_ids"] == [5, 6]
        assert told["meta_info"]["finish_reason"] == ABORTED
        assert len(asked) == 1
        assert len(router.application.holds) == 0


async def test_a_request_that_was_aborted_without_a_token_is_asked_for_again_as_it_was() -> None:
    async with pool(when="always") as (router, [worker]):
        bare = {"text": "", "output_ids": [], "meta_info": {"id": "r", "finish_reason": ABORTED}}
        asked = scripted(worker, bare, answer([9], STOPPED))
        assert await ask(router) == answer([9], STOPPED)
        assert asked[0] == asked[1]


async def test_dispatches_are_bounded() -> None:
    async with pool(when="always", max_dispatches=3) as (router, [worker]):
        asked = scripted(worker, *(answer([5], ABORTED) for _ in range(5)))
        told = await ask(router)
        assert told["output_ids"] == [5, 5, 5]
        assert told["meta_info"]["finish_reason"] == ABORTED
        assert len(asked) == 3


async def test_dispatches_without_a_token_are_bounded() -> None:
    async with pool(when="always", max_idle_dispatches=2) as (router, [worker]):
        asked = scripted(worker, *(answer([], ABORTED) for _ in range(5)))
        assert (await ask(router))["meta_info"]["finish_reason"] == ABORTED
        assert len(asked) == 3


async def test_an_abort_after_the_last_token_is_the_end_by_length() -> None:
    async with pool(when="always") as (router, [worker]):
        asked = scripted(worker, answer([1] * 8, ABORTED))
        told = await ask(router)
        assert told["meta_info"]["finish_reason"] == {"type": "length", "length": 8}
        assert len(asked) == 1


@pytest.mark.parametrize(
    "more",
    [
        {"sampling_params": {"n": 2}},
        {"sampling_params": {"json_schema": "{}"}},
        {"input_ids": [[1], [2]]},
        {"image_data": ["x"]},
    ],
)
async def test_what_cannot_be_continued_is_passed_on(more: dict[str, Any]) -> None:
    async with pool(when="always") as (router, [worker]):
        asked = scripted(worker, answer([5], ABORTED))
        assert await ask(router, **more) == answer([5], ABORTED)
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("second", "what"),
    [
        ({"output_token_logprobs": []}, "logprobs"),
        ({"routed_experts": None}, "no routed experts"),
        ({"routed_experts": "AAAA"}, "int32"),
        ({"routed_experts": "AAAAAAAAAAA="}, "16 and 8 bytes"),
    ],
)
async def test_segments_that_do_not_fit_are_an_error_and_nothing_is_padded(second: dict[str, Any], what: str) -> None:
    async with pool(when="always") as (router, [worker]):
        first = answer([5], ABORTED, routed_experts=base64.b64encode(bytes(3 * 16)).decode())
        rest = answer([9], STOPPED, routed_experts=base64.b64encode(bytes(16)).decode())
        rest["meta_info"] |= second
        scripted(worker, first, rest)
        told = await exchange_once(router.port, json={**ASK, "return_routed_experts": True})
        assert (told.status, told.json()["error"]["code"]) == (502, "segment_mismatch"), told.body
        assert what in told.json()["error"]["message"]


async def test_the_rest_goes_to_the_worker_that_has_the_beginning() -> None:
    async with pool(3, when="always") as (router, workers):
        asked = {
            worker.url: scripted(worker, *(answer([5], ABORTED) for _ in range(3)), answer([9], STOPPED))
            for worker in workers
        }
        told = await ask(router)
        assert len({segment["worker"] for segment in told["meta_info"]["segments"]}) == 1
        assert sorted(len(each) for each in asked.values()) == [0, 0, 4]


async def test_the_rest_goes_elsewhere_while_that_worker_is_paused() -> None:
    async with pool(2) as (router, workers):
        first: list[str] = []

        async def pause_this(worker: ScriptedWorker) -> None:
            if not first:
                first.append(worker.url)
                await call(router, f"/routing/pause?worker_id={worker.url}")

        for worker in workers:
            scripted(
                worker,
                answer([5], ABORTED, weight_version="1"),
                answer([9], STOPPED),
                before=lambda worker=worker: pause_this(worker),
            )
        told = await exchange_once(router.port, json=ASK)
        segments = told.json()["meta_info"]["segments"]
        assert segments[0]["worker"] == first[0]
        assert all(segment["worker"] != first[0] for segment in segments[1:])


async def test_a_stream_whose_first_worker_made_nothing_tells_who_made_it() -> None:
    async with pool(2) as (router, workers):
        first: list[str] = []

        def handler(worker: ScriptedWorker) -> Callable[[ScriptedRequest, Connection], Any]:
            async def handle(request: ScriptedRequest, connection: Connection) -> bool:
                if request.path != "/generate":
                    return await send_json(connection, {})
                await connection.begin(content_type="text/event-stream")
                told = answer([5, 9], STOPPED, weight_version="2")
                if not first:
                    first.append(worker.url)
                    await call(router, f"/routing/pause?worker_id={worker.url}")
                    told = answer([], ABORTED)
                await connection.write(b"data: " + json.dumps(told).encode() + b"\n\ndata: [DONE]\n\n")
                return await connection.end()

            return handle

        for worker in workers:
            worker.handler = handler(worker)
        told = await exchange_once(router.port, json={**ASK, "stream": True})
        (second,) = [worker.url for worker in workers if worker.url not in first]
        last = json.loads(told.body.split(b"\n\n")[-3][6:])
        assert told.get("x-router-worker") == first[0]
        assert last["output_ids"] == [5, 9]
        assert last["meta_info"]["segments"] == [{"start": 0, "end": 2, "worker": second, "weight_version": "2"}]


async def test_a_lost_stream_goes_on_elsewhere_if_the_settings_say_so() -> None:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(running_engine())
        worker = await stack.enter_async_context(ScriptedWorker())
        router = await stack.enter_async_context(
            running_router(
                [worker.url, engine.url],
                enabled=["partial_rollout", "round_robin"],
                plugins={"partial_rollout": {"continue_lost": True}},
            )
        )
        body = {
            "input_ids": [5, 6, 7],
            "sampling_params": {"max_new_tokens": 20, "sampling_seed": 1, "ignore_eos": True},
            "return_logprob": True,
            "return_routed_experts": True,
        }
        whole = (await exchange_once(engine.port, json=body)).json()
        ids = whole["output_ids"]

        async def lose(request: ScriptedRequest, connection: Connection) -> bool:
            part = {
                "text": "",
                "output_ids": ids[:4],
                "meta_info": {
                    "finish_reason": None,
                    "prompt_tokens": 3,
                    "completion_tokens": 4,
                    "output_token_logprobs": whole["meta_info"]["output_token_logprobs"][:4],
                },
            }
            await connection.begin(content_type="text/event-stream")
            await connection.write(b"data: " + json.dumps(part).encode() + b"\n\n")
            connection.close()
            return False

        worker.handler = lose
        told = await exchange_once(router.port, json={**body, "stream": True})
        assert told.clean, told.body
        last = json.loads(told.body.split(b"\n\n")[-3][6:])
        assert last["output_ids"] == ids
        assert last["meta_info"]["routed_experts"] == whole["meta_info"]["routed_experts"]
        assert [segment["worker"] for segment in last["meta_info"]["segments"]] == [worker.url, engine.url]


async def test_a_worker_that_is_lost_before_the_rest_leaves_what_there_is() -> None:
    async with pool(when="always") as (router, [worker]):
        scripted(worker, answer([5, 6], ABORTED))
        told = await exchange_once(router.port, json=ASK)
        assert told.status == 200
        assert told.json()["output_ids"] == [5, 6]
        assert told.json()["meta_info"]["finish_reason"] == ABORTED
