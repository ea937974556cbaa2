"""Clients that leave: at every wait of every async hook, and at every stage of an exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from router_core import ClientLeft, Exchange
from router_core.testing.answer import build_request
from router_core.testing.client import NoAnswerError, RawClient
from router_core.testing.conformance.passing import bodies
from router_core.testing.conformance.subject import Bench, Nonconformance, Subject

HOOKS = ("request_start", "around_upstream", "attempt_start", "response_start")
MAX_WAITS = 4
"""Waits of one hook at which a client leaves, one after the other."""


async def a_client_may_leave_at_every_hook(subject: Subject) -> None:
    """A client that leaves while an async hook waits ends the exchange once; the next one is served."""
    for hook in HOOKS:
        if not subject.implements(hook):
            continue
        async with subject.bench() as bench:
            leaver = _Leaver(hook)
            bench.watch(leaver.wrap)
            before, count = await _warm(bench), 1
            for target, body in bodies(subject.engine):
                for wait in range(1, MAX_WAITS + 1):
                    leaver.at = wait
                    await _leave(bench, target, body, leaver)
                    count += 1
                    await bench.settle(count, f"a client left at wait {wait} of {hook}")
                    if not leaver.has_left:
                        break
            leaver.at = 0
            await _is_well(bench, before, count, f"a client left while {hook} waited")


async def a_client_may_leave_at_every_stage(subject: Subject) -> None:
    """A client that leaves during its upload, before the answer, or amid it, leaves nothing behind."""
    for target, body in bodies(subject.engine):
        async with subject.bench() as bench:
            before = await _warm(bench)
            asked = build_request("POST", target, json=body)
            async with RawClient(bench.port) as client:
                await client.send(asked[:-10])
            bench.worker.hold()
            async with RawClient(bench.port) as client:
                await client.send(asked)
                await _reached(bench, target)
            await bench.settle(3, f"a client left during {target}")
            bench.worker.release()
            bench.worker.say("one two three four", hold_after=2)
            async with RawClient(bench.port) as client:
                await client.send(asked)
                if body.get("stream"):
                    await client.read_piece(await client.read_head())
                else:
                    await _reached(bench, target)
            await bench.settle(4, f"a client left amid the answer of {target}")
            bench.worker.release()
            await _is_well(bench, before, 4, f"a client left amid {target}")


async def _reached(bench: Bench, target: str) -> None:
    """Until the newest request is at the worker."""
    try:
        await bench.worker.wait_until(lambda: bool(bench.worker.live), 5.0)
    except TimeoutError:
        raise Nonconformance(f"a good request for {target} does not reach the worker") from None


async def _warm(bench: Bench) -> set[asyncio.Task[Any]]:
    """One exchange, so that what starts once has started; the tasks that run then."""
    await bench.ask("/warm", method="GET")
    await bench.settle(1, "after the first request")
    return asyncio.all_tasks()


async def _is_well(bench: Bench, before: set[asyncio.Task[Any]], count: int, what: str) -> None:
    target, body = bodies(bench.subject.engine)[0]
    answer = await bench.ask(target, json=body)
    if answer.status != 200:
        raise Nonconformance(f"after {what} a good request got {answer.status}: {answer.body[:200]!r}")
    await bench.settle(count + 1, f"after {what}")
    bench.check_errors(f"after {what}")
    await bench.check_tasks(before, f"after {what}")


async def _leave(bench: Bench, target: str, body: object, leaver: _Leaver) -> None:
    leaver.has_left = False
    async with RawClient(bench.port) as client:
        leaver.client = client
        await client.send(build_request("POST", target, json=body))
        try:
            await client.read_answer()
        except (NoAnswerError, ConnectionError):
            return
        except TimeoutError:
            raise Nonconformance(f"a request for {target} got no answer in time") from None


class _Leaver:
    """Has the client leave when a hook waits for the ``at``-th time."""

    def __init__(self, hook: str) -> None:
        self.hook, self.at, self.has_left = hook, 0, False
        self.client: RawClient | None = None

    def wrap(self, hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
        if hook != self.hook:
            return call

        async def left(exchange: Exchange, *rest: Any) -> Any:
            return await _Stepped(call(exchange, *rest), lambda count: self._waits(exchange, count))

        return left

    def _waits(self, exchange: Exchange, count: int) -> None:
        if count == self.at and self.client is not None and not self.has_left:
            self.has_left = True
            self.client.leave()
            exchange.interrupt(ClientLeft())


class _Stepped:
    """Awaits a coroutine and says each time that it waits."""

    def __init__(self, work: Any, on_wait: Callable[[int], None]) -> None:
        self._work, self._on_wait = work, on_wait

    def __await__(self) -> Generator[Any, Any, Any]:
        work, count = self._work, 0
        step, given = work.send, None
        while True:
            try:
                waits_for = step(given)
            except StopIteration as done:
                return done.value
            count += 1
            self._on_wait(count)
            try:
                given, step = (yield waits_for), work.send
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001  # whatever is thrown in belongs to the hook
                given, step = error, work.throw
