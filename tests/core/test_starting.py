from router_core import Clock, Worker, WorkerState
from router_core.workers import WorkerTable


def table_with_one_worker() -> tuple[WorkerTable, Worker, list[WorkerState]]:
    states: list[WorkerState] = []
    table = WorkerTable(Clock(), max_workers=8, on_change=lambda worker, old, new: states.append(new))
    return table, table.add("http://127.0.0.1:1"), states


def test_a_worker_that_is_not_up_yet_is_starting_until_it_is_restored():
    table, worker, states = table_with_one_worker()
    assert table.await_start(worker, worker.generation, "refused")
    assert table.ready() == ()
    assert table.await_start(worker, worker.generation, "answered 503")
    assert worker.reason == "answered 503"
    assert table.restore(worker, worker.generation)
    assert states == [WorkerState.READY, WorkerState.STARTING, WorkerState.READY]


def test_a_worker_that_is_out_or_was_registered_anew_does_not_become_starting():
    table, worker, _ = table_with_one_worker()
    old = worker.generation
    table.quarantine(worker, old, "dead")
    assert not table.await_start(worker, old, "refused")
    table.add(worker.url)
    assert not table.await_start(worker, old, "refused")
    assert worker.is_ready
