"""The metrics page: a snapshot taken in the event loop, written out wherever there is time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from router_core import Router, WorkerState
from router_metrics.tally import Histogram, Tally

STATES = tuple(state for state in WorkerState if state is not WorkerState.REMOVED)


@dataclass(frozen=True, slots=True)
class WorkerShot:
    """One worker at one moment."""

    url: str
    id: str
    worker_type: str
    weight_version: str
    state: WorkerState
    inflight: int
    attempts: Mapping[str, int]
    first_byte: Histogram | None
    upstream: Histogram | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the page shows, apart from the objects that go on changing."""

    workers: Sequence[WorkerShot]
    outcomes: Mapping[str, int]
    codes: Mapping[str, int]
    request: Histogram
    queue: Histogram
    hold: Histogram
    lag: Histogram
    held: Mapping[str, int]
    """Requests that are held now, by kind."""
    oldest_hold_s: float
    holds: int
    holds_refused: int
    holds_timed_out: int
    retries: int
    moves: int
    running: int
    waiting: int
    sessions: int
    hook_times: Sequence[tuple[str, str, int, float]]
    """(plugin, hook, calls, seconds)"""
    hook_errors: Mapping[tuple[str, str], int]


def take_snapshot(
    router: Router,
    tally: Tally,
    lag: Histogram,
    hook_times: Iterable[tuple[str, str, int, float]],
    *,
    with_worker_histograms: bool,
) -> Snapshot:
    """Copies what the page needs; runs in the event loop and formats nothing."""
    shots = []
    for worker in router.workers:
        told = tally.workers.get(worker)
        with_histograms = told is not None and with_worker_histograms
        shots.append(
            WorkerShot(
                url=worker.url,
                id=worker.id,
                worker_type=worker.worker_type,
                weight_version=worker.weight_version or "",
                state=worker.state,
                inflight=worker.own_inflight,
                attempts=told.attempts.by_kind() if told is not None else {},
                first_byte=told.first_byte.copy() if told is not None and with_histograms else None,
                upstream=told.upstream.copy() if told is not None and with_histograms else None,
            )
        )
    waiting = sum(
        all(attempt.outcome is not None and attempt.status is None for attempt in exchange.attempts)
        for exchange in router.exchanges
    )
    return Snapshot(
        workers=shots,
        outcomes=tally.outcomes.by_kind(),
        codes=dict(tally.codes),
        request=tally.request.copy(),
        queue=tally.queue.copy(),
        hold=tally.hold.copy(),
        lag=lag.copy(),
        held=router.holds.by_kind(),
        oldest_hold_s=router.holds.oldest_s(),
        holds=router.holds.held_total,
        holds_refused=router.holds.refused_total,
        holds_timed_out=router.holds.timed_out_total,
        retries=tally.retries,
        moves=tally.moves,
        running=len(router.exchanges),
        waiting=waiting,
        sessions=len(router.sessions),
        hook_times=list(hook_times),
        hook_errors=router.plugin_errors(),
    )


def render(snapshot: Snapshot) -> bytes:
    """The page in Prometheus text format 0.0.4."""
    return generate_latest(_Page(snapshot))


class _Page(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        yield from _exchanges(self._snapshot)
        yield from _workers(self._snapshot.workers)
        yield from _plugins(self._snapshot)


def _exchanges(shot: Snapshot) -> Iterator[Metric]:
    yield _counters("router_requests", "Requests that have ended, by how.", ["outcome"], _rows(shot.outcomes))
    yield _counters("router_errors", "Requests that ended with an error, by its code.", ["code"], _rows(shot.codes))
    yield _histogram("router_request_seconds", "From a request's arrival to the end of its answer.", shot.request)
    yield _histogram("router_queue_seconds", "From a request's arrival to its first attempt at a worker.", shot.queue)
    yield from _holds(shot)
    yield CounterMetricFamily("router_retries", "Attempts after the first one of their request.", value=shot.retries)
    yield CounterMetricFamily("router_session_moves", "Sessions that were given another worker.", value=shot.moves)
    yield GaugeMetricFamily("router_requests_running", "Requests now in the router.", value=shot.running)
    yield GaugeMetricFamily("router_requests_waiting", "Requests that no worker has now.", value=shot.waiting)
    yield GaugeMetricFamily("router_sessions_open", "Open sessions.", value=shot.sessions)
    yield _histogram("router_loop_lag_seconds", "How late the event loop woke up.", shot.lag)


def _holds(shot: Snapshot) -> Iterator[Metric]:
    held = GaugeMetricFamily(
        "router_held_requests", "Requests that are held now, by what they wait for.", labels=["kind"]
    )
    for kind, count in shot.held.items():
        held.add_metric([kind], count)
    yield held
    yield GaugeMetricFamily("router_oldest_hold_seconds", "How long the longest hold lasts.", value=shot.oldest_hold_s)
    yield _histogram("router_hold_seconds", "How long requests were held that were.", shot.hold)
    yield CounterMetricFamily("router_holds", "Requests that were held.", value=shot.holds)
    yield CounterMetricFamily("router_holds_refused", "Requests that found the queue full.", value=shot.holds_refused)
    yield CounterMetricFamily("router_holds_timed_out", "Requests held for too long.", value=shot.holds_timed_out)


def _workers(workers: Sequence[WorkerShot]) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "router_worker_info", "Who a worker is.", labels=["worker", "worker_id", "worker_type", "weight_version"]
    )
    state = GaugeMetricFamily("router_worker_state", "1 for the state that a worker is in.", labels=["worker", "state"])
    inflight = GaugeMetricFamily("router_worker_inflight", "Requests in flight at a worker.", labels=["worker"])
    attempts = CounterMetricFamily(
        "router_attempts", "Attempts at a worker, by how they ended.", labels=["worker", "outcome"]
    )
    first_byte = HistogramMetricFamily(
        "router_first_byte_seconds", "From the choice of a worker to its answer's first byte.", labels=["worker"]
    )
    upstream = HistogramMetricFamily(
        "router_upstream_seconds", "From the choice of a worker to its answer's last byte.", labels=["worker"]
    )
    for shot in workers:
        info.add_metric([shot.url, shot.id, shot.worker_type, shot.weight_version], 1)
        for each in STATES:
            state.add_metric([shot.url, each.value], float(each is shot.state))
        inflight.add_metric([shot.url], shot.inflight)
        for outcome, count in shot.attempts.items():
            attempts.add_metric([shot.url, outcome], count)
        for family, histogram in ((first_byte, shot.first_byte), (upstream, shot.upstream)):
            if histogram is not None:
                family.add_metric([shot.url], _buckets(histogram), histogram.seconds)
    yield from (info, state, inflight, attempts, first_byte, upstream)


def _plugins(shot: Snapshot) -> Iterator[Metric]:
    labels = ["plugin", "hook"]
    calls = [([plugin, hook], count) for plugin, hook, count, _ in shot.hook_times]
    seconds = [([plugin, hook], spent) for plugin, hook, _, spent in shot.hook_times]
    errors = [([plugin, hook], count) for (plugin, hook), count in shot.hook_errors.items()]
    yield _counters("router_hook_calls", "Calls of a plugin's hook.", labels, calls)
    yield _counters(
        "router_hook_seconds", "Time in a plugin's hook, without what it called further in.", labels, seconds
    )
    yield _counters("router_hook_errors", "Failures of a plugin's hook.", labels, errors)


def _rows(counts: Mapping[str, int]) -> list[tuple[list[str], int]]:
    return [([label], count) for label, count in counts.items()]


def _counters(name: str, text: str, labels: list[str], rows: Iterable[tuple[list[str], float]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in rows:
        family.add_metric(values, count)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(name, text, buckets=_buckets(histogram), sum_value=histogram.seconds)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
