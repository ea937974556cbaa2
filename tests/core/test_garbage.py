"""What an exchange makes is freed when it ends: the collector comes by too seldom for cycles (`garbage.THRESHOLDS`).

Garbage that survives two looks of the collector is kept for twenty million more objects: hundreds of thousands of
requests, about 2 GB.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

import pytest

from router_core.testing import Faults, NoAnswerError, RawClient, ScriptedWorker, build_request, exchange_once, reply
from router_core.testing.router import RunningRouter, running_router
from tests.garbage import garbage

ASK = {"text": "hi"}
COUNT = 20
Load = Callable[[RunningRouter, ScriptedWorker], Awaitable[None]]


async def whole(router: RunningRouter, worker: ScriptedWorker) -> None:
    """Each on a connection of its own."""
    for _ in range(COUNT):
        assert (await exchange_once(router.port, json=ASK)).status == 200


async def kept_alive(router: RunningRouter, worker: ScriptedWorker) -> None:
    async with RawClient(router.port) as client:
        for _ in range(COUNT):
            assert (await client.request("POST", "/generate", json=ASK)).status == 200


async def streamed(router: RunningRouter, worker: ScriptedWorker) -> None:
    for _ in range(COUNT):
        assert (await exchange_once(router.port, json={**ASK, "stream": True})).clean


async def uploaded(router: RunningRouter, worker: ScriptedWorker) -> None:
    """Bodies that come piece by piece, and stop for want of room."""
    worker.handler = reply(b"{}")
    for _ in range(COUNT):
        assert (await exchange_once(router.port, body=b" " * 700_000)).status == 200


async def connections_end(router: RunningRouter, worker: ScriptedWorker) -> None:
    """The worker closes its connection after each answer."""
    worker.fault(Faults.close_after_answer(), times=None)
    await whole(router, worker)


async def refused(router: RunningRouter, worker: ScriptedWorker) -> None:
    for _ in range(COUNT):
        headers = {"x-router-plugins": "+nonsense"}
        assert (await exchange_once(router.port, json=ASK, headers=headers)).status == 400


async def own_routes(router: RunningRouter, worker: ScriptedWorker) -> None:
    for _ in range(COUNT):
        assert (await exchange_once(router.port, "GET", "/workers")).status == 200


async def worker_lost(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.fault(Faults.close_before_answer(), times=None)
    for _ in range(COUNT):
        assert (await exchange_once(router.port, json=ASK)).status == 502


async def answer_cut(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.fault(Faults.close_amid(after_bytes=20), times=None)
    for _ in range(COUNT):
        try:
            assert not (await exchange_once(router.port, json=ASK)).clean
        except NoAnswerError:
            continue


async def client_left(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.hold()
    for _ in range(COUNT):
        worker.requests.clear()
        async with RawClient(router.port) as client:
            await client.send(build_request(json=ASK))
            await worker.wait_for_requests(1)
    worker.release()


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    """pytest keeps what was logged, and by it exchanges that would be garbage."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("front", ["auto", "asgi"])
@pytest.mark.parametrize(
    "load",
    [
        whole,
        kept_alive,
        streamed,
        uploaded,
        connections_end,
        refused,
        own_routes,
        worker_lost,
        answer_cut,
        client_left,
    ],
    ids=lambda load: load.__name__,
)
async def test_nothing_of_an_exchange_is_left_to_the_collector(load: Load, front: str) -> None:
    async with (
        ScriptedWorker() as worker,
        running_router([worker.url], enabled=("metrics", "retry", "least_inflight"), router={"front": front}) as router,
    ):
        worker.say("some words", times=None)
        await load(router, worker)  # what is made once is made now
        running = router.application.proxy.running
        with garbage() as found:
            await load(router, worker)
            async with asyncio.timeout(10):
                while running:  # noqa: ASYNC110  # nothing tells that the last exchange has ended
                    await asyncio.sleep(0)
            await asyncio.sleep(0.05)
        assert {name: count for name, count in found.items() if count >= COUNT} == {}
