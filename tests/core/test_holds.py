"""Requests that wait in the router, by themselves and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_core import (
    Answer,
    Attempt,
    AttemptWithdrawn,
    CallNext,
    Exchange,
    Headers,
    HoldQueue,
    PluginSettings,
    Reject,
    Request,
    Router,
    Worker,
    WorkerState,
    hookimpl,
)
from router_core.clock import Clock
from router_core.testing import RawClient, ScriptedWorker, build_request, exchange_once
from router_core.testing.router import running_router


class NoBody:
    is_declared = False
    is_streamed = False
    whole: bytes | None = b""
    length: int | None = None

    async def read_all(self) -> bytes:
        return b""

    async def stream(self) -> AsyncIterator[bytes]:
        yield b""


def exchange_named(name: str, order: float = 0.0) -> Exchange:
    exchange = Exchange(name, Request("POST", b"/generate", b"", Headers(), NoBody()), started_at=0.0)
    exchange.hold_order = order
    return exchange


class Room:
    """A place for some: who finds none holds for it."""

    def __init__(self, queue: HoldQueue) -> None:
        self.queue = queue
        self.free = 0
        self.served: list[str] = []

    async def pass_through(self, exchange: Exchange) -> None:
        while self.free == 0:
            await self.queue.hold(exchange, "room")
        self.free -= 1
        self.served.append(exchange.id)

    def make_free(self, places: int) -> None:
        self.free += places
        self.queue.wake("room")


async def settle() -> None:
    """Until everything that can run has run."""
    for _ in range(50):
        await asyncio.sleep(0)


async def end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def queue_of(**given: Any) -> HoldQueue:
    return HoldQueue(Clock(), **{"max_requests": 100, "timeout_s": 30.0, **given})


async def test_whoever_waited_first_goes_first_and_the_rest_stays() -> None:
    queue = queue_of()
    room = Room(queue)
    tasks = [asyncio.create_task(room.pass_through(exchange_named(name))) for name in "abcd"]
    await settle()
    assert (len(queue), room.served) == (4, [])
    room.make_free(2)
    await settle()
    assert (len(queue), room.served) == (2, ["a", "b"])
    await end(tasks)
    assert len(queue) == 0


async def test_a_smaller_hold_order_goes_first() -> None:
    queue = queue_of()
    room = Room(queue)
    exchanges = [exchange_named("late", 2.0), exchange_named("soon", 1.0), exchange_named("soon too", 1.0)]
    tasks = [asyncio.create_task(room.pass_through(exchange)) for exchange in exchanges]
    await settle()
    room.make_free(3)
    await asyncio.gather(*tasks)
    assert room.served == ["soon", "soon too", "late"]


async def test_who_tries_in_vain_keeps_the_place() -> None:
    queue = queue_of()
    room = Room(queue)
    tasks = [asyncio.create_task(room.pass_through(exchange_named(name))) for name in "ab"]
    await settle()
    queue.wake("room")
    await settle()
    assert (len(queue), room.served) == (2, [])
    room.make_free(1)
    await settle()
    assert room.served == ["a"]
    await end(tasks)


async def test_a_full_queue_refuses_with_retry_after() -> None:
    queue = queue_of(max_requests=1)
    waiting = asyncio.create_task(queue.hold(exchange_named("a"), "room"))
    await settle()
    with pytest.raises(Reject, match=r"router\.max_held_requests") as refused:
        await queue.hold(exchange_named("b"), "room")
    assert (refused.value.status, refused.value.code, refused.value.retry_after_s) == (503, "hold_queue_full", 1)
    assert queue.refused_total == 1
    await end([waiting])


async def test_whoever_waits_too_long_is_refused_however_often_it_was_held() -> None:
    queue = queue_of(timeout_s=0.05)
    exchange = exchange_named("a")
    with pytest.raises(Reject) as refused:
        await queue.hold(exchange, "room", reason="no room")
    assert (refused.value.status, refused.value.code) == (503, "hold_timeout")
    assert "no room" in refused.value.message
    assert exchange.held_s >= 0.05
    with pytest.raises(Reject):
        await queue.hold(exchange, "another room")
    assert (len(queue), queue.timed_out_total, queue.held_total) == (0, 2, 1)


async def test_whoever_leaves_at_his_turn_passes_it_on() -> None:
    queue = queue_of()
    room = Room(queue)
    tasks = [asyncio.create_task(room.pass_through(exchange_named(name))) for name in "ab"]
    await settle()
    room.make_free(1)
    asyncio.get_running_loop().call_soon(tasks[0].cancel)
    await settle()
    assert room.served == ["b"]
    await end(tasks)
    assert len(queue) == 0


async def test_counts_and_the_oldest_wait_can_be_read() -> None:
    queue = queue_of()
    assert (queue.by_kind(), queue.oldest_s(), list(queue)) == ({}, 0.0, [])
    tasks = [
        asyncio.create_task(queue.hold(exchange_named(f"{kind}{at}"), kind)) for kind in ("room", "time") for at in "12"
    ]
    await settle()
    assert queue.by_kind() == {"room": 2, "time": 2}
    assert queue.oldest_s() > 0
    assert [held.exchange.id for held in queue] == ["room1", "room2", "time1", "time2"]
    await end(tasks)


async def test_a_closed_queue_refuses_who_waits_and_who_comes() -> None:
    queue = queue_of()
    waiting = asyncio.create_task(queue.hold(exchange_named("a"), "room"))
    await settle()
    queue.close()
    with pytest.raises(Reject) as refused:
        await waiting
    assert refused.value.code == "shutting_down"
    with pytest.raises(Reject):
        await queue.hold(exchange_named("b"), "room")


@settings(max_examples=60, deadline=None)
@given(
    orders=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    steps=st.lists(st.one_of(st.integers(0, 3), st.integers(-12, -1)), max_size=12),
)
def test_any_mix_of_room_and_leaving_serves_those_who_stay_in_order(orders: list[int], steps: list[int]) -> None:
    """Numbers from 0 up: so many places; below: the one of that number leaves."""

    async def run() -> None:
        queue = queue_of()
        room = Room(queue)
        exchanges = [exchange_named(str(at), float(order)) for at, order in enumerate(orders)]
        tasks = [asyncio.create_task(room.pass_through(exchange)) for exchange in exchanges]
        await settle()
        expected = sorted(range(len(orders)), key=lambda at: (orders[at], at))
        served: list[int] = []
        for step in steps:
            if step >= 0:
                room.make_free(step)
            elif -step <= len(tasks):
                tasks[-step - 1].cancel()
            await settle()
            if step < 0 and (left := -step - 1) in expected:
                expected.remove(left)
            while room.free + len(room.served) > len(served) and expected:
                served.append(expected.pop(0))
            assert room.served == [str(at) for at in served]
        await end(tasks)
        assert len(queue) == 0

    asyncio.run(run())


# --------------------------------------------------------------------------------------------------------- over HTTP
class Door:
    """Leaves every worker out for now while it is shut, and withdraws attempts as often as it is told."""

    is_shut = True
    withdrawals = 0
    router: Router
    seen: list[int]

    class Settings(PluginSettings):
        pass

    def __init__(self, settings: Settings) -> None:
        type(self).seen = []

    @hookimpl
    async def startup(self, router: Router) -> None:
        type(self).router = router

    @hookimpl
    def filter_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> Sequence[Worker] | None:
        if not self.is_shut:
            return None
        for worker in workers:
            exchange.leave_out(worker, "the door is shut", for_now=True)
        return []

    @hookimpl
    async def attempt_start(self, attempt: Attempt) -> None:
        attempt.before_send(self._check)

    def _check(self) -> None:
        if self.withdrawals > 0:
            type(self).withdrawals -= 1
            raise AttemptWithdrawn("not yet")

    @hookimpl
    async def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Answer:
        answer = await call_next(exchange)
        self.seen.append(len(exchange.attempts))
        return answer

    @classmethod
    def open(cls) -> None:
        cls.is_shut = False
        cls.router.holds.wake_for_workers()


@pytest.fixture
def door() -> type[Door]:
    Door.is_shut, Door.withdrawals = True, 0
    return Door


async def until(is_true: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not is_true():  # noqa: ASYNC110 - the queue sets no event for tests
            await asyncio.sleep(0.001)


async def test_a_request_waits_for_a_worker_that_is_out_for_now(door: type[Door]) -> None:
    async with ScriptedWorker() as worker, running_router([worker.url], enabled=[], classes=[door]) as router:
        asking = [asyncio.create_task(exchange_once(router.port, json={"text": str(at)})) for at in range(3)]
        await until(lambda: len(door.router.holds) == 3)
        assert worker.requests == []
        assert [held.reason for held in door.router.holds] == ["the door is shut"] * 3
        door.open()
        assert [answer.status for answer in await asyncio.gather(*asking)] == [200] * 3
        assert len(door.router.holds) == 0


async def test_a_client_that_leaves_while_it_is_held_is_gone_from_the_queue(door: type[Door]) -> None:
    async with ScriptedWorker() as worker, running_router([worker.url], enabled=[], classes=[door]) as router:
        async with RawClient(router.port) as client:
            await client.send(build_request("POST", "/generate", (), json={"text": "hi"}, host="h"))
            await until(lambda: len(door.router.holds) == 1)
        await until(lambda: len(door.router.holds) == 0)
        door.open()
        assert (await exchange_once(router.port, json={"text": "hi"})).status == 200
        assert len(worker.requests) == 1


async def test_the_hold_ends_with_a_typed_503(door: type[Door]) -> None:
    async with (
        ScriptedWorker() as worker,
        running_router([worker.url], enabled=[], classes=[door], router={"hold_timeout_s": 0.05}) as router,
    ):
        answer = await exchange_once(router.port, json={"text": "hi"})
        assert (answer.status, answer.get("retry-after")) == (503, "1")
        assert answer.json()["error"]["code"] == "hold_timeout"


async def test_a_stopping_router_refuses_what_it_holds(door: type[Door]) -> None:
    async with ScriptedWorker() as worker:
        async with running_router([worker.url], enabled=[], classes=[door]) as router:
            asking = asyncio.create_task(exchange_once(router.port, json={"text": "hi"}))
            await until(lambda: len(door.router.holds) == 1)
        answer = await asking
        assert (answer.status, answer.json()["error"]["code"]) == (503, "shutting_down")


async def test_a_withdrawn_attempt_counts_for_nothing(door: type[Door]) -> None:
    door.is_shut, door.withdrawals = False, 3
    async with ScriptedWorker() as worker, running_router([worker.url], enabled=[], classes=[door]) as router:
        assert (await exchange_once(router.port, json={"text": "hi"})).status == 200
        assert len(worker.requests) == 1
        assert door.seen == [1]
        assert [worker.inflight for worker in door.router.workers] == [0]


async def test_the_503_says_what_a_filter_said() -> None:
    class Reasons:
        @hookimpl
        def filter_workers(self, exchange: Exchange, workers: Sequence[Worker]) -> Sequence[Worker]:
            for worker in workers:
                exchange.leave_out(worker, "too far away")
            return []

    async with ScriptedWorker() as worker, running_router([worker.url], enabled=[], classes=[Reasons]) as router:
        answer = await exchange_once(router.port, json={"text": "hi"})
        assert answer.status == 503
        assert answer.json()["error"]["workers"] == {worker.url: "too far away"}


@pytest.mark.parametrize("is_held", [True, False])
async def test_a_setting_has_requests_wait_for_workers_that_are_starting(is_held: bool) -> None:
    class Starting:
        router: Router

        @hookimpl
        async def startup(self, router: Router) -> None:
            type(self).router = router
            for worker in router.workers:
                worker.state = WorkerState.STARTING

    settings = {"hold_for_starting_workers": is_held}
    async with (
        ScriptedWorker() as worker,
        running_router([worker.url], enabled=[], classes=[Starting], router=settings) as router,
    ):
        asking = asyncio.create_task(exchange_once(router.port, json={"text": "hi"}))
        if is_held:
            await until(lambda: len(Starting.router.holds) == 1)
            for known in Starting.router.workers:
                Starting.router.workers.restore(known, known.generation)
            assert (await asking).status == 200
        else:
            assert (await asking).status == 503


async def test_an_attempt_is_handed_over_once_the_whole_body_is_written() -> None:
    attempts: list[Attempt] = []

    class Watch:
        @hookimpl
        async def attempt_start(self, attempt: Attempt) -> None:
            attempts.append(attempt)

    async with ScriptedWorker() as worker, running_router([worker.url], enabled=[], classes=[Watch]) as router:
        whole = build_request("POST", "/generate", (), b" " * 200_000 + b'{"text":"hi"}', host="h")
        async with RawClient(router.port) as client:
            await client.send(whole[:100_000])
            await worker.wait_until(lambda: len(worker.requests) == 1)
            [attempt] = attempts
            assert (attempt.request_sent, attempt.is_handed_over) == (True, False)
            waiting = asyncio.create_task(attempt.wait_handed_over())
            await client.send(whole[100_000:])
            await waiting
            assert attempt.is_handed_over
            assert (await client.read_answer()).status == 200
