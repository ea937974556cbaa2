"""Session affinity over real HTTP: sticking, spreading, moving, pins, bad input, bounds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from router_core import Exchange, Outcome, Worker, WorkerState, hookimpl
from router_core.testing import Faults, RawAnswer, RawClient, ScriptedWorker, TurnedClock, build_request, exchange_once
from router_core.testing.router import RunningRouter, running_router

ENABLED = ("health", "session_affinity", "least_inflight")


class Pool:
    """A router, its workers, and what was told of moves and ends."""

    def __init__(self, router: RunningRouter, workers: list[ScriptedWorker], moves: list[tuple[str, str, str]]) -> None:
        self.router = router
        self.workers = workers
        self.moves = moves

    async def ask(self, session: str | None = None, *, worker: int | None = None, **headers: str) -> RawAnswer:
        """One request; keyword ``force_pin_once="true"`` is the header ``x-force-pin-once``."""
        fields = {f"x-{name.replace('_', '-')}": value for name, value in headers.items()}
        if session is not None:
            fields["x-session-id"] = session
        if worker is not None:
            fields["x-base-worker-id"] = self.workers[worker].url
        return await exchange_once(self.router.port, headers=fields, json={"text": "hi"})

    async def served_by(self, session: str | None = None, **headers: Any) -> int:
        answer = await self.ask(session, **headers)
        assert answer.status == 200, answer.body
        return self.number(answer.get("x-router-worker"))

    def number(self, url: str | None) -> int:
        return [worker.url for worker in self.workers].index(url or "none")

    def counts(self) -> list[int]:
        return [len(worker.requests) for worker in self.workers]

    def worker(self, number: int) -> Worker:
        found = self.router.application.workers.get(self.workers[number].url)
        assert found is not None
        return found

    async def until_out(self, number: int) -> None:
        """Until health has seen that a worker refuses connections."""
        async with asyncio.timeout(10):
            while self.worker(number).state is not WorkerState.QUARANTINED:
                await self.ask(worker=number)

    async def metrics(self) -> str:
        return self.router.application.outside.metrics()


@asynccontextmanager
async def running_pool(
    count: int = 3, *, enabled: Sequence[str] = ENABLED, clock: TurnedClock | None = None, **affinity: Any
) -> AsyncIterator[Pool]:
    moves: list[tuple[str, str, str]] = []

    class Told:
        @hookimpl
        def session_moved(self, session_id: str, old: Worker, new: Worker) -> None:
            moves.append((session_id, old.url, new.url))

    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker()) for _ in range(count)]
        router = await stack.enter_async_context(
            running_router(
                [worker.url for worker in workers],
                enabled=enabled,
                plugins={"session_affinity": affinity, "health": {"interval_s": 1000.0}},
                classes=[Told],
                clock=clock,
            )
        )
        yield Pool(router, workers, moves)


# ------------------------------------------------------------------------------------------------- sticking, spreading
@pytest.mark.parametrize("mode", ["sticky", "hash"])
async def test_every_turn_of_a_session_goes_to_one_worker(mode: str) -> None:
    async with running_pool(mode=mode) as pool:
        for session in ("a", "b", "c", "d"):
            assert len({await pool.served_by(session) for _ in range(5)}) == 1
        assert pool.moves == []


async def test_a_burst_of_new_sessions_spreads_evenly() -> None:
    async with running_pool(4) as pool:
        for worker in pool.workers:
            worker.hold()
        asking = [asyncio.create_task(pool.ask(f"s{number}")) for number in range(40)]
        for worker in pool.workers:
            await worker.wait_for_requests(10)
            worker.release()
        await asyncio.gather(*asking)
        assert pool.counts() == [10, 10, 10, 10]


async def test_new_sessions_count_sessions_and_not_requests() -> None:
    async with running_pool(2) as pool:
        home = await pool.served_by("a")
        for _ in range(5):
            await pool.served_by("a")
        assert await pool.served_by("b") == 1 - home
        assert await pool.served_by("c") in (0, 1)
        assert Counter([await pool.served_by(session) for session in "abcd"]) == {0: 2, 1: 2}


async def test_requests_without_session_are_balanced() -> None:
    async with running_pool(4) as pool:
        for _ in range(100):
            await pool.served_by(None)
        assert all(15 <= count <= 35 for count in pool.counts()), "po-tie"


async def test_an_empty_session_header_names_no_session() -> None:
    async with running_pool(2) as pool:
        assert {await pool.served_by("") for _ in range(4)} == {0, 1}


async def test_the_same_key_has_the_same_worker_on_every_router_replica() -> None:
    async with running_pool(4, mode="hash") as pool:
        here = {f"s{number}": await pool.served_by(f"s{number}") for number in range(30)}
        urls = [worker.url for worker in reversed(pool.workers)]
        tables: Mapping[str, Any] = {"session_affinity": {"mode": "hash"}}
        async with running_router(urls, enabled=ENABLED, plugins=tables) as replica:
            there = Pool(replica, pool.workers, [])
            assert {session: await there.served_by(session) for session in here} == here


# ------------------------------------------------------------------------------------------------------------- moving
async def test_only_a_dead_workers_sessions_move_and_they_move_once() -> None:
    """po-sticky-remap."""
    async with running_pool(3) as pool:
        sessions = [f"s{number}" for number in range(9)]
        before = {session: await pool.served_by(session) for session in sessions}
        await pool.workers[0].stop()
        await pool.until_out(0)
        after = {session: await pool.served_by(session) for session in sessions}
        moved = [session for session in sessions if after[session] != before[session]]
        assert moved == [session for session in sessions if before[session] == 0]
        assert sorted(Counter(after[session] for session in moved)) == [1, 2], "shared by those that are left"
        await pool.workers[0].start()
        assert pool.router.application.workers.restore(pool.worker(0), pool.worker(0).generation)
        assert {session: await pool.served_by(session) for session in sessions} == after
        assert sorted(session for session, _, _ in pool.moves) == moved
        assert {old for _, old, _ in pool.moves} == {pool.workers[0].url}
        assert f'router_affinity_moves_total{{reason="lost"}} {len(moved)}' in await pool.metrics()


async def test_hashed_sessions_of_a_dead_worker_come_back_to_it() -> None:
    async with running_pool(3, mode="hash") as pool:
        sessions = [f"s{number}" for number in range(20)]
        before = {session: await pool.served_by(session) for session in sessions}
        await pool.workers[1].stop()
        await pool.until_out(1)
        during = {session: await pool.served_by(session) for session in sessions}
        assert all(during[session] == before[session] for session in sessions if before[session] != 1)
        assert 1 not in during.values()
        await pool.workers[1].start()
        pool.router.application.workers.restore(pool.worker(1), pool.worker(1).generation)
        assert {session: await pool.served_by(session) for session in sessions} == before


async def test_a_session_is_not_pinned_to_a_worker_that_refused_its_first_request() -> None:
    """po-sticky-no-bind-on-fail."""
    async with running_pool(2) as pool:
        await pool.workers[0].stop()
        answers = [await pool.ask("s") for _ in range(3)]
        assert sorted(answer.status for answer in answers) in ([200, 200, 200], [200, 200, 502])
        assert {await pool.served_by("s") for _ in range(3)} == {1}
        assert pool.moves == []


@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_a_refusal_of_the_worker_itself_does_not_pin(status: int) -> None:
    async with running_pool(2) as pool:
        pool.workers[0].fault(Faults.status(status), times=None)
        pool.workers[1].fault(Faults.status(status), times=None)
        await pool.ask("s")
        entry = pool.counts().index(1)
        for worker in pool.workers:
            worker.clear_faults()
        assert await pool.served_by("s") == 1 - entry, "it was placed anew: the other one was picked longer ago"


async def test_a_session_leaves_an_overloaded_worker_and_stays_where_it_went() -> None:
    async with running_pool(2, overload_absolute=2, overload_relative=1.5) as pool:
        home = await pool.served_by("s")
        pool.workers[home].hold()
        held = [asyncio.create_task(pool.ask("s")) for _ in range(3)]
        await pool.workers[home].wait_for_requests(1 + 3)
        assert await pool.served_by("s") == 1 - home
        pool.workers[home].release()
        await asyncio.gather(*held)
        assert await pool.served_by("s") == 1 - home, "older turns that end late do not take it back"
        assert pool.moves == [("s", pool.workers[home].url, pool.workers[1 - home].url)]
        assert 'router_affinity_moves_total{reason="overloaded"} 1' in await pool.metrics()


async def test_a_removed_workers_sessions_move_also_when_it_is_registered_again() -> None:
    async with running_pool(2) as pool:
        home = await pool.served_by("s")
        url = pool.workers[home].url
        await exchange_once(pool.router.port, "POST", f"/remove_worker?url={url}")
        assert await pool.served_by("s") == 1 - home
        await exchange_once(pool.router.port, "POST", f"/add_worker?url={url}")
        assert await pool.served_by("s") == 1 - home


async def test_a_client_that_leaves_its_first_turn_leaves_no_reservation() -> None:
    async with running_pool(2) as pool:
        first, second = pool.workers
        first.hold()
        second.hold()
        async with RawClient(pool.router.port) as client:
            await client.send(build_request(headers={"x-session-id": "s"}, json={"text": "hi"}))
            await asyncio.wait(
                [asyncio.create_task(worker.wait_for_requests(1)) for worker in pool.workers],
                return_when=asyncio.FIRST_COMPLETED,
            )
            assert "router_affinity_sessions 1" in await pool.metrics()
        await first.wait_until_idle()
        await second.wait_until_idle()
        assert "router_affinity_sessions 0" in await pool.metrics()


# -------------------------------------------------------------------------------------------------------- what it is by
async def test_groups_stay_together_when_the_key_is_the_group() -> None:
    async with running_pool(3, key="group") as pool:
        for group in ("p1", "p2", "p3"):
            assert len({await pool.served_by(f"s{number}", prompt_id=group) for number in range(4)}) == 1
        assert len({await pool.served_by("s") for _ in range(6)}) == 3, "no prompt id: no affinity"


async def test_nothing_stays_together_when_the_key_is_none() -> None:
    async with running_pool(2, key="none") as pool:
        assert {await pool.served_by("s") for _ in range(4)} == {0, 1}
        assert len({await pool.served_by("t", is_sticky="true") for _ in range(4)}) == 1


async def test_stickiness_can_be_said_by_request_and_by_session() -> None:
    async with running_pool(2) as pool:
        assert {await pool.served_by("s", is_sticky="false") for _ in range(4)} == {0, 1}
        assert len({await pool.served_by("s") for _ in range(4)}) == 1
        port = pool.router.port
        opened = await exchange_once(port, "POST", "/sessions", json={"session_id": "free", "is_sticky": False})
        assert opened.status == 200
        served = [await exchange_once(port, target="/sessions/free/generate", json={"text": "hi"}) for _ in range(4)]
        assert len({answer.get("x-router-worker") for answer in served}) == 2


async def test_a_sticky_session_under_hashing_has_an_entry_in_the_table() -> None:
    async with running_pool(2, mode="hash") as pool:
        await pool.served_by("s")
        assert "router_affinity_sessions 0" in await pool.metrics()
        await pool.served_by("s", is_sticky="true")
        assert "router_affinity_sessions 1" in await pool.metrics()


# --------------------------------------------------------------------------------------------------------------- pins
async def test_the_answer_says_which_worker_and_rank_served() -> None:
    async with running_pool(2) as pool:
        answer = await pool.ask("s")
        number = pool.number(answer.get("x-router-worker"))
        assert answer.get("x-base-worker-id") == pool.worker(number).id
        assert answer.get("x-target-dp-rank") == "0"
        refused = await pool.ask(hard_pin="true", base_worker_id="w-unknown")
        assert refused.get("x-base-worker-id") is None


async def test_what_an_answer_says_can_be_sent_back_as_a_pin() -> None:
    async with running_pool(3) as pool:
        first = await pool.ask()
        pin = {"base_worker_id": first.get("x-base-worker-id") or "", "target_dp_rank": "0"}
        assert {await pool.served_by(**pin) for _ in range(5)} == {pool.number(first.get("x-router-worker"))}


@pytest.mark.parametrize("spelling", ["url", "slash", "id"])
async def test_a_pin_names_a_worker_by_id_or_any_spelling_of_its_url(spelling: str) -> None:
    async with running_pool(3) as pool:
        worker = pool.worker(2)
        name = {"url": worker.url, "slash": worker.url + "/", "id": worker.id}[spelling]
        assert {await pool.served_by(base_worker_id=name) for _ in range(4)} == {2}


async def test_a_pin_moves_a_session_for_good() -> None:
    async with running_pool(2) as pool:
        home = await pool.served_by("s")
        assert await pool.served_by("s", worker=1 - home, force_pin_once="true") == 1 - home
        assert {await pool.served_by("s") for _ in range(3)} == {1 - home}
        assert len(pool.moves) == 1
        assert 'router_affinity_moves_total{reason="pinned"} 1' in await pool.metrics()


async def test_a_pin_holds_even_where_the_worker_is_overloaded() -> None:
    async with running_pool(2, overload_absolute=0) as pool:
        pool.workers[1].hold()
        held = [asyncio.create_task(pool.ask(worker=1)) for _ in range(4)]
        await pool.workers[1].wait_for_requests(4)
        pool.workers[1].release()
        await asyncio.gather(*held)


async def test_a_soft_pin_falls_through_when_its_worker_is_unknown_or_out() -> None:
    async with running_pool(2) as pool:
        assert (await pool.ask(base_worker_id="w-000000000000")).status == 200
        assert (await pool.ask(base_worker_id="http://nowhere:1", target_dp_rank="3")).status == 200
        await pool.workers[0].stop()
        await pool.until_out(0)
        assert await pool.served_by(worker=0) == 1


async def test_a_hard_pin_is_refused_when_its_worker_is_unknown_or_out() -> None:
    async with running_pool(2) as pool:
        unknown = await pool.ask(base_worker_id="w-000000000000", hard_pin="true")
        assert (unknown.status, unknown.get("retry-after")) == (503, "1")
        reasons = unknown.json()["error"]["workers"]
        assert set(reasons.values()) == {"the request is pinned to w-000000000000, which is not registered"}
        wrong_rank = await pool.ask(worker=0, target_dp_rank="2", hard_pin="true")
        assert wrong_rank.status == 503
        await pool.workers[0].stop()
        await pool.until_out(0)
        out = await pool.ask(worker=0, hard_pin="true")
        assert out.status == 503
        reasons = out.json()["error"]["workers"]
        assert reasons[pool.workers[0].url].startswith("quarantined")
        assert reasons[pool.workers[1].url] == f"the request is pinned to {pool.workers[0].url}"
        assert await pool.served_by(worker=1, hard_pin="true") == 1


async def test_pins_are_hard_by_a_setting_unless_the_request_says_soft() -> None:
    async with running_pool(2, hard_pins=True) as pool:
        assert (await pool.ask(base_worker_id="w-000000000000")).status == 503
        assert (await pool.ask(base_worker_id="w-000000000000", hard_pin="false")).status == 200


async def test_a_pin_forced_once_holds_for_the_first_attempt_alone() -> None:
    class TriesTwice:
        @hookimpl
        async def around_upstream(self, exchange: Exchange, call_next: Any) -> Any:
            first = await call_next(exchange)
            await first.aclose()
            return await call_next(exchange)

    async with ScriptedWorker() as busy, ScriptedWorker() as idle:
        urls = [busy.url, idle.url]
        async with running_router(urls, enabled=["session_affinity", "least_inflight"], classes=[TriesTwice]) as router:
            for once, counts in (("true", (1, 1)), ("false", (2, 0))):
                busy.requests.clear()
                idle.requests.clear()
                headers = {"x-base-worker-id": busy.url, "x-hard-pin": "true", "x-force-pin-once": once}
                answer = await exchange_once(router.port, headers=headers, json={"text": "hi"})
                assert answer.status == 200
                assert (len(busy.requests), len(idle.requests)) == counts


async def test_a_pin_chooses_a_rank_of_a_server_and_the_server_alone_leaves_the_rank_open() -> None:
    async with (
        ScriptedWorker() as worker,
        ScriptedWorker() as other,
        running_router([other.url], enabled=ENABLED) as router,
    ):
        await exchange_once(router.port, "POST", "/workers", json={"url": worker.url, "dp_size": 2})

        async def rank(**headers: str) -> str | None:
            fields = {f"x-{name.replace('_', '-')}": value for name, value in headers.items()}
            answer = await exchange_once(router.port, headers=fields, json={"text": "hi"})
            assert (answer.get("x-router-worker") or "").startswith(worker.url)
            assert answer.get("x-target-dp-rank") == worker.requests[-1].get("x-data-parallel-rank")
            return answer.get("x-target-dp-rank")

        assert [await rank(base_worker_id=worker.url, target_dp_rank="1") for _ in range(3)] == ["1"] * 3
        base = router.application.workers.find(worker.url)[0].base_id
        assert [await rank(base_worker_id=base, target_dp_rank="0") for _ in range(3)] == ["0"] * 3
        assert {await rank(base_worker_id=base) for _ in range(4)} == {"0", "1"}
        assert await rank(base_worker_id=f"{worker.url}@1") == "1"


async def test_sessions_see_ranks_as_workers_of_their_own() -> None:
    async with ScriptedWorker() as worker, running_router(enabled=ENABLED) as router:
        await exchange_once(router.port, "POST", "/workers", json={"url": worker.url, "dp_size": 4})
        for session in "abcd":
            for _ in range(3):
                await exchange_once(router.port, headers={"x-session-id": session}, json={"text": "hi"})
        ranks = [request.get("x-data-parallel-rank") for request in worker.requests]
        assert sorted(Counter(ranks).values()) == [3, 3, 3, 3]


# ---------------------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"is_sticky": "perhaps"}, "x-is-sticky"),
        ({"base_worker_id": "w", "target_dp_rank": "first"}, "x-target-dp-rank"),
        ({"base_worker_id": "a b"}, "x-base-worker-id"),
        ({"base_worker_id": "w", "force_pin_once": "2"}, "x-force-pin-once"),
        ({"target_dp_rank": "1"}, "x-target-dp-rank"),
    ],
)
async def test_a_wrong_header_is_a_400_that_names_it_and_reaches_no_worker(headers: dict[str, str], name: str) -> None:
    async with running_pool(1) as pool:
        answer = await pool.ask(**headers)
        assert (answer.status, answer.json()["error"]["param"]) == (400, name)
        assert pool.counts() == [0]


async def test_a_key_that_is_too_long_is_a_400_that_names_its_header() -> None:
    async with running_pool(1, max_key_characters=10) as pool:
        assert (await pool.ask("s" * 10)).status == 200
        answer = await pool.ask("s" * 11)
        assert (answer.status, answer.json()["error"]["param"]) == (400, "x-session-id")
        smg = await pool.ask(smg_routing_key="k" * 11)
        assert smg.json()["error"]["param"] == "x-smg-routing-key"
        assert (await pool.ask("s" * 11, is_sticky="false")).status == 200


async def test_a_wrong_is_sticky_of_a_session_is_refused_when_it_is_opened() -> None:
    async with running_pool(1) as pool:
        answer = await exchange_once(pool.router.port, "POST", "/sessions", json={"is_sticky": "perhaps"})
        assert (answer.status, answer.json()["error"]["param"]) == (400, "is_sticky")


# -------------------------------------------------------------------------------------------------- what it remembers
async def test_a_closed_session_is_forgotten() -> None:
    async with running_pool(2) as pool:
        port = pool.router.port
        await exchange_once(port, "POST", "/sessions", json={"session_id": "s"})
        first = await exchange_once(port, target="/sessions/s/generate", json={"text": "hi"})
        told = (await exchange_once(port, "GET", "/sessions/s")).json()
        assert told["affinity"] == {"worker": first.get("x-router-worker"), "bound": True, "moves": 0}
        assert "router_affinity_sessions 1" in await pool.metrics()
        await exchange_once(port, "DELETE", "/sessions/s")
        assert "router_affinity_sessions 0" in await pool.metrics()


async def test_idle_sessions_are_forgotten_by_themselves() -> None:
    """po-sticky-bound, over HTTP; the table's own test has 100000 keys."""
    clock = TurnedClock()
    async with running_pool(2, enabled=("session_affinity",), clock=clock, ttl_s=100.0) as pool:
        await asyncio.gather(*(pool.ask(f"s{number}") for number in range(50)))
        assert "router_affinity_sessions 50" in await pool.metrics()
        await clock.turn(60.0)
        await pool.ask("s0")
        await clock.turn(70.0)
        assert "router_affinity_sessions 1" in await pool.metrics()
        assert 'router_affinity_forgotten_total{reason="idle"} 49' in await pool.metrics()


async def test_more_sessions_than_the_bound_forget_the_oldest() -> None:
    async with running_pool(2, max_sessions=10) as pool:
        for number in range(30):
            await pool.ask(f"s{number}")
        assert "router_affinity_sessions 10" in await pool.metrics()
        assert 'router_affinity_forgotten_total{reason="full"} 20' in await pool.metrics()


async def test_switched_off_it_leaves_no_trace() -> None:
    seen: list[Outcome] = []

    class Looks:
        @hookimpl
        def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
            seen.append(outcome)

    async with ScriptedWorker() as worker, running_router([worker.url], enabled=ENABLED, classes=[Looks]) as router:
        headers = {"x-router-plugins": "-session_affinity", "x-session-id": "s", "x-is-sticky": "perhaps"}
        answer = await exchange_once(router.port, headers=headers, json={"text": "hi"})
        assert answer.status == 200
        assert answer.get("x-base-worker-id") is None
        assert "router_affinity_sessions 0" in router.application.outside.metrics()
    assert [outcome.is_ok for outcome in seen] == [True]
