"""What a coordinator says of many workers at once, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from router_core.testing import exchange_once
from router_core.testing.router import running_router

FIRST, RANK_0, RANK_1 = "http://10.0.0.1:30000", "http://10.0.0.2:30000@0", "http://10.0.0.2:30000@1"


async def test_pushed_statistics_are_listed_with_their_age() -> None:
    async with running_router([FIRST], enabled=[]) as router:
        pushed = [{"worker_id": FIRST, "kv_usage": 0.25, "running": 3}]
        answer = await exchange_once(router.port, "POST", "/workers/update_stats", json=pushed)
        assert answer.status == 200
        assert (answer.json()["total"], answer.json()["succeeded"]) == (1, 1)
        [told] = (await exchange_once(router.port, "GET", "/workers/stats")).json()["workers"]
        assert (told["url"], told["stats"]) == (FIRST, {"kv_usage": 0.25, "running": 3})
        assert told["age_s"] >= 0


async def test_a_rank_or_all_ranks_of_a_server_can_be_meant() -> None:
    async with running_router([RANK_0, RANK_1], enabled=[]) as router:
        server = "http://10.0.0.2:30000"
        await exchange_once(
            router.port, "POST", "/workers/update_stats", json={"worker_id": server, "stats": {"running": 1}}
        )
        one = {"worker_id": server, "dp_rank": 1, "running": 7}
        await exchange_once(router.port, "POST", "/workers/update_stats", json={"workers": [one]})
        told = (await exchange_once(router.port, "GET", "/workers/stats")).json()["workers"]
        assert [entry["stats"] for entry in told] == [{"running": 1}, {"running": 7}]
        assert [entry["dp_rank"] for entry in told] == [0, 1]


async def test_an_unknown_worker_fails_alone() -> None:
    async with running_router([FIRST], enabled=[]) as router:
        pushed = [{"worker_id": "w-unknown", "running": 1}, {"worker_id": FIRST, "running": 2}]
        answer = await exchange_once(router.port, "POST", "/workers/update_stats", json=pushed)
        told = answer.json()
        assert (answer.status, told["total"], told["succeeded"]) == (207, 2, 1)
        assert told["failed"][0]["worker_id"] == "w-unknown"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (7, "workers"),
        (["x"], "workers"),
        ([{"running": 1}], "worker_id"),
        ([{"worker_id": 4, "running": 1}], "worker_id"),
        ([{"worker_id": FIRST, "dp_rank": "0"}], "dp_rank"),
        ([{"worker_id": FIRST, "dp_rank": -1}], "dp_rank"),
        ([{"worker_id": FIRST, "running": "many"}], "running"),
        ([{"worker_id": FIRST, "running": True}], "running"),
        ([{"worker_id": FIRST, "stats": [1]}], "stats"),
        ([{"worker_id": FIRST, "running": 1}, {"worker_id": FIRST, "kv_usage": None}], "kv_usage"),
    ],
)
async def test_a_wrong_entry_is_a_400_that_names_the_field_and_applies_nothing(body: Any, param: str) -> None:
    async with running_router([FIRST], enabled=[]) as router:
        answer = await exchange_once(router.port, "POST", "/workers/update_stats", json=body)
        assert (answer.status, answer.json()["error"]["param"]) == (400, param)
        [told] = (await exchange_once(router.port, "GET", "/workers/stats")).json()["workers"]
        assert (told["stats"], told["age_s"]) == ({}, None)


@pytest.mark.parametrize("body", [b"{", b"[" * 200_000, b"\xff"])
async def test_a_body_that_is_no_json_is_a_400(body: bytes) -> None:
    async with running_router([FIRST], enabled=[]) as router:
        answer = await exchange_once(router.port, "POST", "/workers/update_stats", body=body)
        assert (answer.status, answer.json()["error"]["code"]) == (400, "malformed_body")


async def test_half_a_character_is_no_worker() -> None:
    async with running_router([FIRST], enabled=[]) as router:
        pushed = b'{"worker_id": "\\ud800", "running": 1}'
        answer = await exchange_once(router.port, "POST", "/workers/update_stats", body=pushed)
        assert (answer.status, answer.json()["error"]["param"]) == (400, "worker_id")
