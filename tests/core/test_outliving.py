"""Work that goes on although the client has left, and sessions that a plugin opens and evicts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest

from router_core import Answer, CallNext, Exchange, OutcomeKind, Reject, Router, Session, hookimpl
from router_core.testing import RawClient, ScriptedWorker, build_request, exchange_once

Serve = Callable[..., Awaitable[Any]]


def keeper() -> type[Any]:
    """A plugin whose calls to a worker are not given up when the client leaves."""

    class Keeper:
        kept: ClassVar[list[bytes]] = []
        tasks: ClassVar[list[asyncio.Task[Any]]] = []
        exchanges: ClassVar[list[Exchange]] = []
        has_left = asyncio.Event()

        @hookimpl
        async def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Answer:
            async def call() -> None:
                answer = await call_next(exchange)
                Keeper.kept.append(await answer.body())

            task = exchange.outlive_client(call())
            Keeper.tasks.append(task)
            Keeper.exchanges.append(exchange)
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                Keeper.has_left.set()
                raise
            return Answer(200, body=Keeper.kept[-1])

    return Keeper


async def left(port: int, worker: ScriptedWorker, target: str = "/generate") -> None:
    """A client that leaves once the worker has its request."""
    async with RawClient(port) as client:
        await client.send(build_request(target=target, json={"text": "hi"}))
        await worker.wait_for_requests(1)


async def test_a_call_that_outlives_its_client_keeps_its_worker_and_delays_the_end(serve: Serve) -> None:
    plugin = keeper()
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(plugin,))
        worker.hold()
        await left(router.port, worker)
        await plugin.has_left.wait()
        assert router.ends.outcomes == []
        assert [known.inflight for known in router.workers] == [1]
        worker.release()
        assert [outcome.kind for outcome in await router.ends.wait()] == [OutcomeKind.CLIENT_LEFT]
        assert router.ends.inflight == [0]
        assert len(plugin.kept) == 1
        assert worker.requests[0].peer_left is False


async def test_whoever_started_it_may_cancel_it_and_the_workers_connection_closes(serve: Serve) -> None:
    plugin = keeper()
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(plugin,))
        worker.hold()
        await left(router.port, worker)
        plugin.tasks[0].cancel()
        await router.ends.wait()
        await worker.wait_until_idle()
        assert worker.requests[0].peer_left is True


async def test_a_stopping_router_cancels_what_outlives_a_client() -> None:
    from router_core.testing.router import running_router

    plugin = keeper()
    async with ScriptedWorker() as worker:
        async with running_router(
            [worker.url], enabled=(), classes=[plugin], router={"shutdown_grace_s": 0.0}
        ) as router:
            worker.hold()
            await left(router.port, worker)
            await plugin.has_left.wait()
        assert plugin.tasks[0].cancelled()
        assert plugin.exchanges[0].attempts[0].outcome is not None


async def test_a_turn_that_outlives_its_client_is_a_running_turn_of_its_session(serve: Serve) -> None:
    plugin = keeper()
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(plugin,))
        await exchange_once(router.port, target="/sessions", json={"session_id": "s"})
        worker.hold()
        await left(router.port, worker, "/sessions/s/generate")
        await plugin.has_left.wait()
        shown = await exchange_once(router.port, "GET", "/sessions/s")
        assert shown.json()["inflight"] == 1
        worker.release()
        closed = await exchange_once(router.port, "DELETE", "/sessions/s")
        assert closed.status == 204
        assert closed.get("x-router-cancelled-turns") is None


async def test_a_second_work_of_one_exchange_is_refused(serve: Serve) -> None:
    refusals: list[str] = []

    class Greedy:
        @hookimpl
        async def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Answer:
            await exchange.outlive_client(asyncio.sleep(0))
            with pytest.raises(RuntimeError) as refused:
                exchange.outlive_client(asyncio.sleep(0))
            refusals.append(str(refused.value))
            return await call_next(exchange)

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Greedy,))
        assert (await exchange_once(router.port, json={"text": "hi"})).status == 200
    assert refusals == ["one work of this exchange outlives its client already"]


class Opener:
    """Opens and evicts sessions, and hears of them as any plugin does."""

    router: Router
    heard: list[tuple[str, str]]

    @hookimpl
    async def startup(self, router: Router) -> None:
        Opener.router = router
        Opener.heard = []

    @hookimpl
    async def session_opened(self, session: Session, body: dict[str, Any]) -> list[str]:
        Opener.heard.append(("opened", session.id))
        return ["mine"]

    @hookimpl
    def session_closed(self, session: Session, reason: str) -> None:
        Opener.heard.append((reason, session.id))


async def test_a_plugin_opens_a_session_as_a_client_would(serve: Serve) -> None:
    router = await serve(classes=(Opener,))
    session = await Opener.router.open_session({"session_id": "s", "mine": 1})
    assert Opener.heard == [("opened", "s")]
    assert (await exchange_once(router.port, "GET", "/sessions/s")).status == 200
    with pytest.raises(Reject) as refused:
        await Opener.router.open_session({"session_id": session.id})
    assert refused.value.status == 409


async def test_an_evicted_session_is_gone_with_its_reason_for_later_and_for_running_turns(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Opener,))
        session = await Opener.router.open_session({"session_id": "s"})
        worker.hold()
        running = asyncio.create_task(exchange_once(router.port, target="/sessions/s/generate", json={"text": "hi"}))
        await worker.wait_for_requests(1)
        Opener.router.sessions.evict(session, "no room")
        cut = await running
        later = await exchange_once(router.port, target="/sessions/s/generate", json={"text": "hi"})
        for answer in (cut, later):
            assert (answer.status, answer.json()["error"]["code"]) == (410, "session_evicted")
            assert "no room" in answer.json()["error"]["message"]
        assert Opener.heard[-1] == ("no room", "s")
        Opener.router.sessions.evict(session, "again")
        assert Opener.heard[-1] == ("no room", "s")
