"""Loads in memory that processes share."""

from __future__ import annotations

import pytest

from router_core.clock import Clock
from router_core.processes.counts import CAPACITY, CountedWorker, Counts
from router_core.processes.snapshot import adopt, take_snapshot
from router_core.types import WorkerState
from router_core.workers import WorkerTable


def make(memory: Counts, key: str) -> CountedWorker:
    fields = {"id": key, "base_id": key, "url": key, "base_url": key, "dp_rank": None, "generation": 1}
    return CountedWorker(memory, key=key, **fields)


def test_a_worker_shows_the_sum_of_all_processes_and_counts_its_own() -> None:
    supervisor = Counts.create(3)
    views = [Counts(supervisor.fd, 3, slot) for slot in range(3)]
    first, *others = (make(view, "http://a:1") for view in views)
    elsewhere = make(views[1], "http://b:1")
    first.count(2)
    others[0].count(1)
    others[1].count(4)
    assert [worker.inflight for worker in (first, *others)] == [7, 7, 7]
    assert [worker.own_inflight for worker in (first, *others)] == [2, 1, 4]
    assert elsewhere.inflight == 0
    first.count(-2)
    assert (first.own_inflight, others[0].inflight) == (0, 5)


def test_what_a_lost_process_had_in_flight_counts_no_more() -> None:
    supervisor = Counts.create(2)
    views = [Counts(supervisor.fd, 2, slot) for slot in range(2)]
    lost, kept = (make(view, "http://a:1") for view in views)
    lost.count(3)
    kept.count(1)
    assert supervisor.take_away(0) == 3
    assert (kept.inflight, supervisor.take_away(0)) == (1, 0)


def test_another_object_at_the_same_url_sees_what_runs_there() -> None:
    memory = Counts.create(2)
    old = make(memory, "http://a:1")
    old.count(1)
    new = make(memory, "http://a:1")
    assert (new.own_inflight, new.inflight) == (0, 0)  # of this process it counts what it was given itself
    assert make(Counts(memory.fd, 2, 1), "http://a:1").inflight == 1


def test_a_full_table_leaves_a_worker_to_each_process_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    memory = Counts.create(2)
    cells = {memory.cell(f"http://a/{number}") for number in range(CAPACITY)}
    assert cells == set(range(CAPACITY))
    extra = make(memory, "http://a:9")
    extra.count(1)
    assert (extra.inflight, extra.own_inflight) == (1, 1)
    assert "http://a:9 is balanced by each process alone" in caplog.text


def table() -> WorkerTable:
    return WorkerTable(Clock(), max_workers=10, on_change=lambda worker, old, new: None)


def test_a_new_process_has_the_workers_of_another_and_no_others() -> None:
    mine, other = table(), table()
    mine.add("http://configured:1")
    other.add("http://a:1@1", weight_version="7", labels={"rack": "b"}, api_key="k", dp_size=2)
    out = other.add("http://b:1/prefix")
    other.quarantine(out, out.generation, "refused")
    other.start_drain(other.add("http://c:1"))
    other.set_stats(out, {"kv_usage": 0.5})
    out.windows.open("/pause", 1e12)
    adopt(mine, take_snapshot(other))
    assert [worker.url for worker in mine] == ["http://a:1@1", "http://b:1/prefix"]
    ready, quarantined = mine
    assert (ready.weight_version, ready.labels, ready.api_key, ready.dp_rank) == ("7", {"rack": "b"}, "k", 1)
    assert (quarantined.state, quarantined.reason) == (WorkerState.QUARANTINED, "refused")
    assert quarantined.stats == {"kv_usage": 0.5}
    assert quarantined.windows.were_open(1e11)
