"""Clients, workers and operators do everything wrong at the same time; afterwards nothing is left behind."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router_core import Answer, Exchange, OutcomeKind, Reject, WorkerFault, hookimpl
from router_core.testing import Faults, MalformedHttpError, NoAnswerError, RawClient, ScriptedWorker, build_request

Serve = Callable[..., Awaitable[Any]]
CLIENTS = 120
CLEAN, BROKEN, NOTHING = "clean", "broken", "nothing"


class Meddles:
    """A plugin that retries, hedges, reads, wraps, refuses, raises and hangs, as the dice say."""

    @hookimpl
    async def request_start(self, exchange: Exchange) -> Answer | None:
        match _dice(exchange) % 23:
            case 1:
                raise Reject(418, "no_tea", "today")
            case 2:
                raise ValueError("a plugin")
            case 3:
                await exchange.request.body()
            case 4:
                exchange.request.set_key("extra", [1, 2, 3])
            case 5:
                return Answer(200, body=b"own")
            case 6:
                await asyncio.Event().wait()
        return None

    @hookimpl
    async def around_upstream(self, exchange: Exchange, call_next: Any) -> Answer:
        dice = _dice(exchange) % 19
        if dice == 1:
            racing = [asyncio.create_task(call_next(exchange)) for _ in range(3)]
            for task in racing:
                task.add_done_callback(lambda task: task.cancelled() or task.exception())
            done, _ = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        if dice == 2:
            with contextlib.suppress(WorkerFault):
                await call_next(exchange)
        if dice == 3:
            await asyncio.sleep(0.01)
        answer: Answer = await call_next(exchange)
        if dice == 4:
            answer.chunks = _wrapped(answer.chunks)
        if dice == 5:
            await answer.body(1 << 20)
        if dice == 6:
            await answer.aclose()
        return answer

    @hookimpl
    def response_chunk(self, exchange: Exchange) -> None:
        if _dice(exchange) % 17 == 1:
            raise ValueError("an observer")


def _dice(exchange: Exchange) -> int:
    return int(exchange.request.headers.get("x-dice") or 0)


async def _wrapped(chunks: Any) -> Any:
    async for chunk in chunks:
        yield chunk


def faults_of(dice: random.Random) -> list[Any]:
    """One fault or none, for a worker's next request."""
    return dice.choice(
        [
            [],
            [],
            [],
            [Faults.close_before_answer(reset=dice.random() < 0.5)],
            [Faults.close_amid(after_bytes=dice.randrange(0, 20), reset=dice.random() < 0.5)],
            [Faults.stall()],
            [Faults.stall_amid(after_bytes=5)],
            [Faults.slow(piece_bytes=7, interval_s=0.001)],
            [Faults.close_delimited()],
            [Faults.close_after_answer()],
            [Faults.garbage()],
            [Faults.status(500)],
            [Faults.interim(103)],
            [Faults.early_answer(413, then="close")],
            [Faults.delay(0.01)],
        ]
    )


async def client_of(port: int, number: int, dice: random.Random) -> str:
    """One request, and how it ended for the client, who may leave at any moment."""
    body = b'{"text":"hello","stream":%s,"n":%d}' % (dice.choice([b"true", b"false"]), number)
    body += b" " * dice.choice([0, 0, 0, 100_000, 500_000])
    asked = build_request(headers=[("X-Dice", str(dice.randrange(100_000)))], body=body)
    leaves_after_s = dice.choice([None, 0.0, 0.005, 0.02, 0.05])
    try:
        async with RawClient(port) as client, asyncio.timeout(leaves_after_s or 1.0):
            if dice.random() < 0.1:
                await client.send(asked[: dice.randrange(len(asked))])
                return NOTHING
            sending = asyncio.create_task(client.send(asked))
            try:
                answer = await client.read_answer()
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            return CLEAN if answer.clean else BROKEN
    except (TimeoutError, NoAnswerError, ConnectionError, MalformedHttpError):
        return NOTHING


async def operate(router: Any, workers: list[ScriptedWorker], dice: random.Random) -> None:
    """Registers, removes, drains and quarantines without end."""
    table = router.application.workers
    while True:
        await asyncio.sleep(dice.random() * 0.01)
        url = dice.choice(workers).url
        worker = table.get(url)
        match dice.randrange(6):
            case 0 if worker is not None:
                table.remove(worker)
            case 1 if worker is not None:
                table.quarantine(worker, worker.generation, "dice")
            case 2 if worker is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await table.drain(worker, 0.01)
            case _:
                table.add(url)


@pytest.mark.parametrize("data_client", ["h1", "aiohttp"])
@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_left_behind(serve: Serve, seed: int, data_client: str) -> None:
    dice = random.Random(seed)
    async with contextlib.AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker(receive_buffer_bytes=16_384)) for _ in range(3)]
        router = await serve(
            *workers,
            classes=(Meddles,),
            enabled=("least_inflight",),
            router={"hook_timeout_s": 0.2, "data_client": data_client},
        )
        operating = asyncio.create_task(operate(router, workers, dice))
        running: set[asyncio.Task[str]] = set()
        ends: Counter[str] = Counter()
        for number in range(CLIENTS):
            workers[number % 3].clear_faults()
            workers[number % 3].fault(*faults_of(dice), times=2)
            running.add(asyncio.create_task(client_of(router.port, number, dice)))
            if len(running) >= 20:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                ends.update(task.result() for task in done)
        ends.update(await asyncio.gather(*running))
        operating.cancel()
        await asyncio.gather(operating, return_exceptions=True)
        await router.settle()
        assert sum(ends.values()) == CLIENTS
        assert ends[CLEAN] > 10
        kinds = Counter(outcome.kind for outcome in router.ends.outcomes)
        assert kinds[OutcomeKind.OK] > 0
        assert kinds[OutcomeKind.CLIENT_LEFT] > 0
        for worker in workers:
            worker.clear_faults()
            await worker.wait_until_idle()
            worker.errors.clear()  # a client that left is no error of the worker
            router.application.workers.add(worker.url)
        async with RawClient(router.port) as client:
            assert (await client.request(json={"text": "after all this"})).status == 200
