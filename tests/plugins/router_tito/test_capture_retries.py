"""Clients that leave and clients that ask again: one call where there is evidence, and never two truths."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from capture_kit import CHAT, Capturing, Door, captured_worker, events, trained_tokenizer, turns, until
from tito_kit import system, user

from router_core import Exchange, StateKey, hookimpl
from router_core.testing import (
    Faults,
    RawAnswer,
    RawClient,
    ScriptedWorker,
    TurnedClock,
    build_request,
    exchange_once,
)

START = [system("S."), user("q1")]
DIALECTS = ["sglang", "vllm"]
RETRY = [("x-stainless-retry-count", "1")]
FIRST = [("x-stainless-retry-count", "0")]


def said(worker: ScriptedWorker, text: str = "two files", **words: Any) -> list[int]:
    ids = trained_tokenizer().encode(text + "<|im_end|>")
    worker.say(text, ids=ids, **words)
    return ids


def sampled(made: Capturing, **options: Any) -> list[list[list[int]]]:
    return [[list(view.completion_ids) for view in branch.transitions] for branch in made.branches(**options)]


def delivered(made: Capturing) -> list[bool]:
    return [node.is_delivered for node in made.trace().trace.nodes if node.is_sampled]


async def until_deserted(made: Capturing) -> None:
    """Until capture knows that nobody waits for the newest call any more."""
    await until(lambda: not (made.calls() and made.calls()[-1].seats))
    await asyncio.sleep(0)  # the grace begins


async def leave(made: Capturing, worker: ScriptedWorker, **body: Any) -> None:
    """A client that leaves once the worker has its request."""
    count = len(turns(worker)) + 1
    async with RawClient(made.port) as client:
        await client.send(build_request(target=f"/sessions/s{CHAT}", json={"messages": START, "model": "m", **body}))
        await worker.wait_until(lambda: len(turns(worker)) >= count)
    await until_deserted(made)


# ------------------------------------------------------------------------------------------------ clients that leave
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_call_goes_on_without_its_client_and_is_kept_undelivered(dialect: str, stream: bool) -> None:
    async with captured_worker(dialect) as (worker, made):
        ids = said(worker, hold_after=0)
        await leave(made, worker, stream=stream)
        assert made.router.application.workers.ready()[0].inflight == 1
        worker.release()
        await made.settle()
        assert sampled(made) == [[ids]] and delivered(made) == [False]
        assert worker.requests[-1].peer_left is False


@pytest.mark.parametrize("stream", [False, True])
async def test_when_the_grace_is_over_the_workers_call_is_given_up_and_not_kept(stream: bool) -> None:
    clock = TurnedClock()
    async with captured_worker(clock=clock, coalesce_grace_s=5.0) as (worker, made):
        said(worker, hold_after=0)
        await leave(made, worker, stream=stream)
        await clock.turn(4.9)
        assert worker.live == 1
        await clock.turn(0.2)
        await worker.wait_until_idle()
        await made.settle()
        assert worker.requests[-1].peer_left is True
        assert sampled(made) == [] and made.trace().trace.refused == {"client_left": 1}
        assert made.calls() == []


async def test_without_a_grace_the_workers_call_ends_with_its_client() -> None:
    async with captured_worker(coalesce_grace_s=0) as (worker, made):
        said(worker, hold_after=0)
        await leave(made, worker)
        await worker.wait_until_idle()
        await made.settle()
        assert worker.requests[-1].peer_left is True and sampled(made) == []


async def test_a_client_that_leaves_before_a_worker_was_asked_costs_no_call() -> None:
    door = Door(trained_tokenizer(), is_open=False)
    async with captured_worker(door=door) as (worker, made):
        async with RawClient(made.port) as client:
            await client.send(build_request(target=f"/sessions/s{CHAT}", json={"messages": START}))
            await until(lambda: bool(made.calls()))
        await made.settle()
        assert turns(worker) == [] and made.trace().trace.refused == {"client_left": 1}
        door.open()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_client_killed_at_any_event_leaves_one_undelivered_turn_that_its_retry_gets_whole(dialect: str) -> None:
    async with captured_worker(dialect) as (worker, made):
        ids = said(worker)
        whole = await made.chat(START, stream=True)
        count = len(events(whole)) + 1
        for cut in range(count):
            session = f"cut{cut}"
            await made.open(session)
            words = worker.say("two files", ids=ids, hold_after=min(cut, len(ids) - 1))
            target = f"/sessions/{session}{CHAT}"
            request = {"messages": START, "model": "m", "stream": True}
            async with RawClient(made.port) as client:
                await client.send(build_request(target=target, json=request))
                await worker.wait_until(lambda cut=cut: len(turns(worker)) == cut + 2)
                if cut:
                    answer = await client.read_head()
                    while answer.body.count(b"data: ") < min(cut, len(ids) - 2):
                        await client.read_piece(answer)
                client.reset()
            calls = made.calls(session)
            await until(lambda calls=calls: not calls[-1].seats)
            words.release()
            await made.settle()
            trace = made.trace(session).trace
            nodes = [node for node in trace.nodes if node.is_sampled]
            assert [(list(node.sampled_ids), node.is_delivered) for node in nodes] == [(ids, False)]
            again = await made.chat(START, session_id=session, stream=True)
            assert [event["choices"] for event in events(again)] == [event["choices"] for event in events(whole)]
            assert nodes[0].is_delivered is True and len(trace.nodes) == 3
        assert len(turns(worker)) == 1 + count


# --------------------------------------------------------------------------------------------------- what is a retry
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_retry_joins_the_call_that_still_runs(dialect: str, stream: bool) -> None:
    async with captured_worker(dialect) as (worker, made):
        ids = said(worker, hold_after=0)
        await leave(made, worker, stream=stream)
        retry = asyncio.create_task(made.chat(START, stream=stream, headers=RETRY))
        await until(lambda: made.calls()[-1].seats > 0)
        worker.release()
        answer = await retry
        assert (answer.status, answer.clean) == (200, True)
        assert answer.get("x-router-worker") == worker.url
        await made.settle()
        assert len(turns(worker)) == 1 and sampled(made) == [[ids]] and delivered(made) == [True]
        assert made.tito.capture.counts.coalesced == 1


async def test_a_joined_stream_begins_at_the_beginning_and_goes_on_live() -> None:
    async with captured_worker() as (worker, made):
        words_ids = said(worker, hold_after=4)
        async with RawClient(made.port) as first, RawClient(made.port) as second:
            request = {"messages": START, "stream": True}
            await first.send(build_request(target=f"/sessions/s{CHAT}", json=request))
            answer = await first.read_head()
            while answer.body.count(b"data: ") < 4:
                await first.read_piece(answer)
            await second.send(build_request(target=f"/sessions/s{CHAT}", headers=RETRY, json=request))
            joined = await second.read_head()
            while joined.body.count(b"data: ") < 4:
                await second.read_piece(joined)
            assert joined.body == answer.body
            worker.release()
            await first.read_body(answer)
            await second.read_body(joined)
        assert answer.body == joined.body and answer.clean is joined.clean is True
        assert sampled(made) == [[words_ids]] and len(turns(worker)) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_of_a_finished_turn_is_given_the_same_answer(stream: bool) -> None:
    async with captured_worker() as (worker, made):
        ids = said(worker)
        first = await made.chat(START, stream=stream, headers=FIRST)
        again = await made.chat(START, stream=stream, headers=RETRY)
        assert (again.status, again.body) == (200, first.body)
        assert len(turns(worker)) == 1 and sampled(made) == [[ids]]


async def test_a_broken_connection_is_evidence_enough() -> None:
    async with captured_worker() as (worker, made):
        ids = said(worker, hold_after=0)
        await leave(made, worker)
        worker.release()
        await made.settle()
        said(worker, "other words")
        assert (await made.chat(START)).status == 200
        assert sampled(made) == [[ids]] and delivered(made) == [True]
        await made.chat(START)  # it has been served meanwhile: this one is a repetition
        assert len(sampled(made)) == 2 and len(turns(worker)) == 2


@pytest.mark.parametrize("name", ["idempotency-key", "x-request-id"])
async def test_an_equal_name_is_evidence_and_another_is_none(name: str) -> None:
    async with captured_worker() as (worker, made):
        said(worker), said(worker, "other words")
        first = await made.chat(START, headers=[(name, "a")])
        again = await made.chat(START, headers=[(name, "a")])
        other = await made.chat(START, headers=[(name, "b")])
        assert first.body == again.body != other.body
        assert len(turns(worker)) == 2


async def test_a_request_id_that_the_session_binds_is_no_evidence() -> None:
    async with captured_worker() as (worker, made):
        await made.open("bound", request_id="r")
        said(worker), said(worker, "other words")
        for _ in range(2):
            await made.chat(START, session_id="bound", headers=[("x-request-id", "mine")])
        assert len(turns(worker)) == 2
        assert [request.get("x-request-id") for request in worker.requests] == ["r", "r"]


async def test_likeness_alone_is_no_evidence() -> None:
    async with captured_worker() as (worker, made):
        one, other = said(worker), said(worker, "other words")
        for _ in range(2):
            await made.chat(START, headers=FIRST)
        assert sampled(made) == [[one], [other]]
        assert sampled(made, drop_abandoned=True) == [[other]]


@pytest.mark.parametrize(
    "change", [{"temperature": 0.5}, {"messages": [*START, user("more")]}, {"stream": True}, {"tools": [{"x": 1}]}]
)
async def test_another_body_is_no_retry(change: dict[str, Any]) -> None:
    async with captured_worker() as (worker, made):
        said(worker), said(worker, "other words")
        body = {"messages": START, "temperature": 1.0}
        for sent in (body, {**body, **change}):
            await exchange_once(made.port, target=f"/sessions/s{CHAT}", headers=RETRY, json=sent)
        assert len(turns(worker)) == 2


async def test_another_spelling_of_the_same_body_is_a_retry() -> None:
    async with captured_worker() as (worker, made):
        said(worker)
        for body in (
            b'{"messages":[{"role":"user","content":"q"}],"top_p":1}',
            b'{"top_p":1.0, "messages":[{"content":[{"type":"text","text":"q"}],"role":"user"}]}',
        ):
            answer = await exchange_once(made.port, target=f"/sessions/s{CHAT}", headers=RETRY, body=body)
            assert answer.status == 200
        assert len(turns(worker)) == 1


async def test_an_answer_that_was_gone_on_from_is_not_given_again() -> None:
    async with captured_worker() as (worker, made):
        first, second, third = said(worker), said(worker, "same"), said(worker, "other words")
        message = (await made.chat(START)).json()["choices"][0]["message"]
        await made.chat([*START, message, user("q2")])
        await made.chat(START, headers=RETRY)
        assert sampled(made) == [[first, second], [third]]
        assert sampled(made, drop_abandoned=True) == [[first, second]]


async def test_a_failed_call_is_tried_anew() -> None:
    async with captured_worker() as (worker, made):
        worker.fault(Faults.close_before_answer())
        assert (await made.chat(START, headers=FIRST)).status == 502
        ids = said(worker)
        assert (await made.chat(START, headers=RETRY)).status == 200
        assert sampled(made) == [[ids]]


async def test_a_sampled_answer_of_a_workers_error_is_tried_anew() -> None:
    async with captured_worker() as (worker, made):
        worker.fault(Faults.status(500))
        assert (await made.chat(START, headers=FIRST)).status == 500
        said(worker)
        assert (await made.chat(START, headers=RETRY)).status == 200


async def test_coalesce_joins_every_equal_request() -> None:
    async with captured_worker(retry="coalesce") as (worker, made):
        ids = said(worker, hold_after=0)
        three = [asyncio.create_task(made.chat(START)) for _ in range(3)]
        await until(lambda: bool(made.calls()) and made.calls()[0].seats == 3)
        worker.release()
        answers = await asyncio.gather(*three)
        assert len({answer.body for answer in answers}) == 1
        assert (await made.chat(START)).body == answers[0].body
        assert len(turns(worker)) == 1 and sampled(made) == [[ids]]


async def test_record_joins_nothing() -> None:
    async with captured_worker(retry="record") as (worker, made):
        one, other = said(worker), said(worker, "other words")
        await made.chat(START, headers=FIRST)
        message = (await made.chat(START, headers=RETRY)).json()["choices"][0]["message"]
        third = said(worker, "same")
        await made.chat([*START, message, user("q2")])
        assert sampled(made) == [[one], [other, third]]
        assert [branch.is_abandoned for branch in made.branches()] == [True, False]


async def test_all_who_joined_a_call_that_fails_are_told() -> None:
    async with captured_worker(retry="coalesce") as (worker, made):
        stop = asyncio.Event()
        worker.fault(Faults.hold(stop), Faults.close_before_answer())
        both = [asyncio.create_task(made.chat(START)) for _ in range(2)]
        await until(lambda: bool(made.calls()) and made.calls()[0].seats == 2)
        stop.set()
        answers = await asyncio.gather(*both)
        assert [(answer.status, answer.json()["error"]["code"]) for answer in answers] == [(502, "worker_lost")] * 2


async def test_a_second_desertion_begins_a_grace_of_its_own() -> None:
    clock = TurnedClock()
    async with captured_worker(clock=clock, coalesce_grace_s=5.0) as (worker, made):
        ids = said(worker, hold_after=0)
        await leave(made, worker)
        await clock.turn(4)
        async with RawClient(made.port) as client:
            await client.send(
                build_request(target=f"/sessions/s{CHAT}", headers=RETRY, json={"messages": START, "model": "m"})
            )
            await until(lambda: made.calls()[-1].seats > 0)
        await until_deserted(made)
        await clock.turn(4)  # 8 s after the first, 4 s after the second
        assert worker.live == 1
        worker.release()
        await made.settle()
        assert sampled(made) == [[ids]]


async def test_kept_answers_are_bounded() -> None:
    async with captured_worker(max_kept_answers=2) as (worker, made):
        for number in range(4):
            said(worker, f"answer {number}")
            await made.chat([user(f"q{number}")])
        assert len(made.calls()) == 2
        said(worker, "anew")
        await made.chat([user("q0")], headers=RETRY)
        assert len(turns(worker)) == 5
        await made.chat([user("q3")], headers=RETRY)
        assert len(turns(worker)) == 5
        assert all(len(call._pieces) <= 1 for call in made.calls())


# -------------------------------------------------------------------------------------------------------- the session
async def test_deleting_waits_for_a_call_whose_client_has_left() -> None:
    async with captured_worker() as (worker, made):
        said(worker, hold_after=0)
        await leave(made, worker)
        deleting = asyncio.create_task(exchange_once(made.port, "DELETE", "/sessions/s"))
        await worker.wait_until(lambda: True)
        worker.release()
        assert (await deleting).status == 204
        assert (await made.chat(START)).status == 404


async def test_deleting_at_once_stops_the_worker_and_a_late_answer_touches_nothing() -> None:
    async with captured_worker() as (worker, made):
        said(worker, hold_after=0)
        trace = made.trace()
        running = asyncio.create_task(made.chat(START))
        await worker.wait_until(lambda: len(turns(worker)) == 1)
        await leave_also(made, worker)
        closed = await exchange_once(made.port, "DELETE", "/sessions/s?wait=false")
        assert (closed.status, closed.get("x-router-cancelled-turns")) == (204, "2")
        assert (await running).status == 409
        await worker.wait_until_idle()
        await made.settle()
        assert trace.trace.nodes == [] and "s" not in made.tito.traces
        assert made.tito.capture.traces.nbytes == 0
        assert (await made.chat(START)).status == 404
        await made.open()
        assert made.trace() is not trace and made.branches() == []


async def leave_also(made: Capturing, worker: ScriptedWorker) -> None:
    said(worker, "other words", hold_after=0)
    await leave(made, worker, temperature=0.1)


async def test_a_turn_that_ends_while_its_session_closes_is_told_and_dropped() -> None:
    closed: list[RawAnswer] = []

    class CloseAmid:
        @hookimpl
        def session_closed(self, reason: str) -> None:
            assert reason == "deleted"

    async with captured_worker(classes=[CloseAmid]) as (worker, made):
        said(worker, hold_after=3)
        async with RawClient(made.port) as client:
            request = {"messages": START, "stream": True}
            await client.send(build_request(target=f"/sessions/s{CHAT}", json=request))
            answer = await client.read_head()
            await client.read_piece(answer)
            closed.append(await exchange_once(made.port, "DELETE", "/sessions/s?wait=false"))
            worker.release()
            await client.read_body(answer)
            assert answer.clean is False
        assert closed[0].status == 204


async def test_a_session_whose_calls_all_fail_keeps_none_of_them() -> None:
    async with captured_worker() as (worker, made):
        worker.fault(Faults.status(500), times=None)
        for number in range(5):
            await made.chat([user(f"q{number}")])
        await made.settle()
        assert made.calls() == []


async def test_what_is_kept_of_a_turn_keeps_neither_its_exchange_nor_its_body() -> None:
    class Mark:
        """Lives as long as its exchange does."""

    seen: list[weakref.ref[Mark]] = []
    key = StateKey[Mark]("mark")

    class Watch:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> None:
            exchange.state[key] = Mark()
            seen.append(weakref.ref(exchange.state[key]))

    async with captured_worker(classes=[Watch]) as (worker, made):
        said(worker), said(worker)
        gc.disable()
        try:
            await made.chat(START)
            await made.chat([user("q")], stream=True)
            await made.settle()
            await until(lambda: len(seen) == 2 and not any(ref() for ref in seen))
        finally:
            gc.enable()
        assert len(made.calls()) == 2
