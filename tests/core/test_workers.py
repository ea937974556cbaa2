"""The table of workers: identity, generations, states, counts."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_core import Headers, Reject, Request, Worker, WorkerState
from router_core.clock import Clock
from router_core.types import Attempt
from router_core.workers import WorkerTable

Change = tuple[str, WorkerState | None, WorkerState]


def table(max_workers: int = 100) -> tuple[WorkerTable, list[Change]]:
    seen: list[Change] = []
    made = WorkerTable(
        Clock(), max_workers=max_workers, on_change=lambda worker, old, new: seen.append((worker.url, old, new))
    )
    return made, seen


def attempt_at(worker: Worker) -> Attempt:
    request = Request("POST", b"/", b"", Headers(), None)  # type: ignore[arg-type]  # nobody reads it
    return Attempt(worker, request, 0.0)


def test_a_worker_keeps_its_first_spelling_and_is_found_by_any() -> None:
    workers, seen = table()
    worker = workers.add("HTTP://H:80/")
    assert workers.add("http://h") is worker
    assert (worker.url, worker.base_url, worker.key) == ("HTTP://H:80/", "http://h", "http://h")
    for name in (worker.id, "http://h:80", "http://H/", "HTTP://H:80/"):
        assert workers.get(name) is worker
    assert (workers.get("http://other"), workers.get("nonsense"), workers.get("")) == (None, None, None)
    assert seen == [("HTTP://H:80/", None, WorkerState.READY), ("HTTP://H:80/", WorkerState.READY, WorkerState.READY)]


def test_registering_again_is_a_new_generation_and_revives() -> None:
    workers, _ = table()
    worker = workers.add("http://h:1")
    first = worker.generation
    assert workers.quarantine(worker, first, "for a test")
    assert (worker.state, worker.reason, workers.ready()) == (WorkerState.QUARANTINED, "for a test", ())
    workers.add("http://h:1")
    assert (worker.state, worker.reason, worker.generation > first) == (WorkerState.READY, None, True)
    assert workers.quarantine(worker, first, "late") is False
    assert workers.restore(worker, first) is False
    assert worker.is_ready


def test_removed_and_added_again_is_another_worker() -> None:
    workers, _ = table()
    old = workers.add("http://h:1")
    workers.remove(old)
    workers.remove(old)
    new = workers.add("http://h:1")
    assert (new is old, new.id == old.id, old.is_gone) == (False, True, True)
    assert workers.quarantine(old, old.generation, "late") is False
    assert workers.restore(old, old.generation) is False
    workers.remove(old)
    assert workers.get("http://h:1") is new


def test_a_draining_worker_is_neither_quarantined_nor_restored() -> None:
    workers, _ = table()
    worker = workers.add("http://h:1")
    workers.start_drain(worker)
    assert workers.quarantine(worker, worker.generation, "x") is False
    assert workers.restore(worker, worker.generation) is False
    assert worker.state is WorkerState.DRAINING


async def test_a_drain_of_an_idle_worker_ends_at_once() -> None:
    workers, _ = table()
    worker = workers.add("http://h:1")
    assert await workers.drain(worker, 10) is True
    assert (worker.is_gone, len(workers)) == (True, 0)


async def test_a_drain_ends_with_the_last_request() -> None:
    workers, _ = table()
    worker = workers.add("http://h:1")
    attempts = [attempt_at(worker) for _ in range(2)]
    for attempt in attempts:
        workers.count(attempt)
    draining = [asyncio.create_task(workers.drain(worker, 10)) for _ in range(2)]
    await asyncio.sleep(0)
    assert (worker.state, workers.ready()) == (WorkerState.DRAINING, ())
    workers.release(attempts[0])
    await asyncio.sleep(0)
    assert not any(task.done() for task in draining)
    workers.release(attempts[1])
    assert await asyncio.gather(*draining) == [True, True]
    assert len(workers) == 0


async def test_a_drain_that_is_overtaken_by_a_new_registration_removes_nothing() -> None:
    workers, _ = table()
    worker = workers.add("http://h:1")
    attempt = attempt_at(worker)
    workers.count(attempt)
    first = asyncio.create_task(workers.drain(worker, 10))
    await asyncio.sleep(0)
    workers.add("http://h:1")
    second = asyncio.create_task(workers.drain(worker, 10))
    assert await first is False
    assert worker.state is WorkerState.DRAINING
    workers.release(attempt)
    assert await second is True
    assert len(workers) == 0


def test_a_url_that_is_none_and_a_table_that_is_full_are_refused() -> None:
    workers, _ = table(max_workers=1)
    with pytest.raises(Reject, match="must start with http"):
        workers.add("ftp://h:1")
    workers.add("http://h:1")
    with pytest.raises(Reject, match="max_workers"):
        workers.add("http://h:2")
    workers.add("http://h:1/")
    with pytest.raises(TypeError, match="no field 'colour'"):
        workers.add("http://h:1", colour="red")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "remove", "quarantine", "restore", "start_drain", "count", "release"]),
            st.sampled_from(["http://a:1", "http://b:2"]),
        ),
        max_size=30,
    )
)
def test_any_history_keeps_counts_and_states_in_step(history: list[tuple[str, str]]) -> None:
    workers, seen = table()
    running: dict[str, list[Attempt]] = {"http://a:1": [], "http://b:2": []}
    states: dict[str, WorkerState] = {}
    known: dict[int, Worker] = {}
    for verb, url in history:
        worker = workers.get(url)
        if verb == "add":
            added = workers.add(url)
            known[id(added)] = added
            states[url] = WorkerState.READY
        elif verb == "release" and running[url]:
            workers.release(running[url].pop())
        elif worker is None:
            continue
        elif verb == "remove":
            workers.remove(worker)
            del states[url]
        elif verb == "quarantine" and workers.quarantine(worker, worker.generation, "x"):
            states[url] = WorkerState.QUARANTINED
        elif verb == "restore" and workers.restore(worker, worker.generation):
            states[url] = WorkerState.READY
        elif verb == "start_drain":
            workers.start_drain(worker)
            states[url] = WorkerState.DRAINING
        elif verb == "count":
            running[url].append(attempt_at(worker))
            workers.count(running[url][-1])
        assert {w.url: w.state for w in workers} == states
        assert [w.url for w in workers.ready()] == [w.url for w in workers if states[w.url] is WorkerState.READY]
        counted = {attempt.worker for attempts in running.values() for attempt in attempts}
        for each in {*known.values(), *counted}:
            mine = sum(attempt.worker is each for attempts in running.values() for attempt in attempts)
            assert each.inflight == mine
    generations = [worker.generation for worker in workers]
    assert len(set(generations)) == len(generations)
    last = {url: new for url, _, new in seen if new is not WorkerState.REMOVED}
    assert all(last[url] is state for url, state in states.items())
