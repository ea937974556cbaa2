"""A generation that is continued over updates is as old as its first token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from router_core.reference_engine import running_engine
from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import RawAnswer, ScriptedRequest, ScriptedWorker, exchange_once, send_json
from router_core.testing.connection import Connection
from router_core.testing.router import RunningRouter, running_router

ASK = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 8}}
ABORTED, STOPPED = {"type": "abort"}, {"type": "stop", "matched": 9}


class Updated:
    """A worker that aborts each answer but the last, each time because of an update that goes through the router."""

    def __init__(self, worker: ScriptedWorker, router: RunningRouter, parts: list[list[int]]) -> None:
        self.url, self.router, self.parts = worker.url, router, parts
        self.version = 5
        self.asked = 0
        worker.handler = self.answer

    async def answer(self, request: ScriptedRequest, connection: Connection) -> bool:
        if request.path != "/generate":
            return await send_json(connection, {})
        self.asked += 1
        made = self.parts.pop(0)
        is_last, version = not self.parts, str(self.version)
        if not is_last:
            await self.call("/routing/pause")
            self.version += 1
            await self.state()
            await self.call("/routing/resume")
        meta = {
            "id": "r",
            "finish_reason": STOPPED if is_last else ABORTED,
            "prompt_tokens": len(request.json()["input_ids"]),
            "completion_tokens": len(made),
            "weight_version": version,
        }
        return await send_json(connection, {"text": "", "output_ids": made, "meta_info": meta})

    async def call(self, target: str, body: Any = None) -> None:
        assert (await exchange_once(self.router.port, target=target, json=body)).status == 200

    async def state(self) -> None:
        stated = [{"worker_id": self.url, "weight_version": str(self.version)}]
        await self.call("/workers/update_weight_version", stated)

    async def turn(self, session: str | None = None) -> RawAnswer:
        headers = {"x-session-id": session} if session else {}
        return await exchange_once(self.router.port, headers=headers, json=ASK)


@asynccontextmanager
async def updated(parts: list[list[int]], **settings: Any) -> AsyncIterator[Updated]:
    async with (
        ScriptedWorker() as worker,
        running_router(
            [worker.url],
            enabled=["partial_rollout", "weight_version", "least_inflight"],
            plugins={"weight_version": {"version_path": "", **settings}},
        ) as router,
    ):
        made = Updated(worker, router, parts)
        await made.state()
        yield made


async def test_a_session_has_the_version_of_its_first_token() -> None:
    async with updated([[7], [8], [9]]) as run:
        answer = await run.turn("s")
        assert answer.json()["output_ids"] == [7, 8, 9]
        assert answer.get("x-version-tag") == "5"


async def test_what_was_made_without_a_token_is_of_no_age() -> None:
    async with updated([[], [8], [9]], max_staleness=1) as run:
        answer = await run.turn("s")
        assert answer.json()["output_ids"] == [8, 9]
        assert answer.get("x-version-tag") == "6"


@pytest.mark.parametrize("session", [None, "s"])
async def test_a_generation_that_began_too_long_ago_is_dropped_before_it_is_dispatched_again(
    session: str | None,
) -> None:
    async with updated([[7], [8], [9], [9]], max_staleness=1) as run:
        answer = await run.turn(session)
        assert (answer.status, answer.json()["error"]["code"]) == (409, "too_stale")
        assert "weight version 5, the newest is 7" in answer.json()["error"]["message"]
        assert run.asked == 2


async def test_a_captured_session_tells_that_it_ended_too_stale() -> None:
    async with (
        running_engine(weight_version="5") as served,
        running_router(
            [served.url],
            enabled=["hf_tokenizer", "tito", "partial_rollout", "weight_version", "least_inflight"],
            plugins={
                "hf_tokenizer": {"path": str(ASSETS)},
                "weight_version": {"version_path": "", "max_staleness": 1},
            },
        ) as router,
    ):

        async def state(version: str) -> None:
            stated = [{"worker_id": served.url, "weight_version": version}]
            await exchange_once(router.port, target="/workers/update_weight_version", json=stated)

        async def turn(*messages: dict[str, Any]) -> RawAnswer:
            body = {"model": "reference", "messages": list(messages), "max_tokens": 4}
            return await exchange_once(router.port, target="/sessions/s/v1/chat/completions", json=body)

        await exchange_once(router.port, target="/sessions", json={"session_id": "s"})
        await state("5")
        first = {"role": "user", "content": "hi"}
        answered = (await turn(first)).json()["choices"][0]["message"]
        await state("7")
        refused = await turn(first, answered, first)
        assert (refused.status, refused.json()["error"]["code"]) == (409, "too_stale")
        samples = (await exchange_once(router.port, target="/sessions/s/samples", json={})).json()["samples"]
        assert [row["end_status"] for row in samples] == ["too_stale"]
