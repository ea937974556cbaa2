"""Chooses the worker of an attempt: filter -> score -> pick. No await between choosing and counting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from router_core.errors import NoWorker
from router_core.plan import Plan
from router_core.types import Decision, Exchange, Worker, WorkerState
from router_core.workers import WorkerTable

_LOWEST: Final = float("-inf")


def select_worker(exchange: Exchange, plan: Plan, workers: WorkerTable, *, hold_for_starting: bool = False) -> Worker:
    """The worker for the next attempt; the decision is kept on the exchange. Raises NoWorker, PluginError.

    ``hold_for_starting``: a worker that is starting is one to wait for.
    """
    if exchange.left_out:
        exchange.left_out.clear()
    candidates = workers.ready()
    if exchange.excluded_workers:
        candidates = tuple(worker for worker in candidates if worker not in exchange.excluded_workers)
    out: dict[str, str] = {}
    scores: dict[Worker, float] = {}
    chosen: Worker | None = None
    if candidates:
        candidates, out = plan.filter_workers(exchange, candidates)
    if candidates:
        scores = plan.score_workers(exchange, candidates)
        chosen = plan.pick_worker(exchange, candidates, scores) or _highest(candidates, scores)
    if out:
        out.update((worker.url, reason) for worker, (reason, _) in exchange.left_out.items() if worker.url in out)
    exchange.decision = Decision(candidates, scores, out, chosen)
    if exchange.is_debugged:
        exchange.decision.out = _reasons(exchange, [w for w in workers if w not in candidates], out)
    if chosen is None:
        exchange.decision.waits_for = _out_for_now(exchange, workers, out, hold_for_starting)
        raise _nobody(exchange, workers, out)
    return chosen


def _out_for_now(
    exchange: Exchange, workers: WorkerTable, out: Mapping[str, str], hold_for_starting: bool
) -> dict[Worker, str]:
    waits_for = {
        worker: reason for worker, (reason, for_now) in exchange.left_out.items() if for_now and worker.url in out
    }
    if hold_for_starting:
        for worker in workers:
            if worker.state is WorkerState.STARTING and worker not in exchange.excluded_workers:
                waits_for[worker] = "starting"
    return waits_for


def _highest(candidates: tuple[Worker, ...], scores: dict[Worker, float]) -> Worker:
    """The highest score; of equals the one that was picked longest ago, so that ties rotate."""
    best = candidates[0]
    highest = _LOWEST
    for worker in candidates:
        known = scores.get(worker)
        score = known if known is not None else 0.0
        if score > highest or (score == highest and worker.last_pick < best.last_pick):
            best, highest = worker, score
    return best


def _nobody(exchange: Exchange, workers: WorkerTable, out: Mapping[str, str]) -> NoWorker:
    if not len(workers):
        return NoWorker("no worker is registered; add one by POST /workers or --worker URL", {})
    return NoWorker("no worker may take this request", _reasons(exchange, workers, out))


def _reasons(exchange: Exchange, workers: Iterable[Worker], out: Mapping[str, str]) -> dict[str, str]:
    """Why each of these workers is no candidate, by its url."""
    reasons = {}
    for worker in workers:
        if not worker.is_ready:
            reasons[worker.url] = f"{worker.state}: {worker.reason}" if worker.reason else str(worker.state)
        elif worker in exchange.excluded_workers:
            reasons[worker.url] = "tried by this request already"
        else:
            reasons[worker.url] = out.get(worker.url, "out")
    return reasons
