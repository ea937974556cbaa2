from hypothesis import given, settings
from hypothesis import strategies as st
from router_metrics.tally import MAX_CODES, OTHER, Histogram, Tally

from router_core import Attempt, AttemptWithdrawn, Exchange, Headers, Outcome, OutcomeKind, Request, Worker, WorkerState

BOUNDS = (1.0, 10.0)


def worker():
    return Worker(
        id="w-1", base_id="w-1", url="http://a:1", key="http://a:1", base_url="http://a:1", dp_rank=None, generation=1
    )


def exchange_at(started_at, *attempts, ended_at=100.0):
    request = Request("POST", b"/generate", b"", Headers(), None)
    exchange = Exchange("x-1", request, started_at=started_at)
    exchange.ended_at = ended_at
    for at, (chosen_at, first_byte_at, kind) in attempts:
        attempt = Attempt(at, request, chosen_at)
        attempt.first_byte_at, attempt.ended_at, attempt.outcome = first_byte_at, 50.0, Outcome(kind)
        exchange.attempts.append(attempt)
    return exchange


@settings(deadline=None, database=None)
@given(st.lists(st.sampled_from((-1.0, 0.0, 0.5, 1.0, 1.5, 10.0, 10.5, float("inf"))), max_size=20))
def test_an_observation_is_counted_where_it_belongs_whatever_came_before(observations):
    histogram = Histogram(BOUNDS)
    for seconds in observations:
        histogram.observe(seconds)
    low = sum(seconds <= 1.0 for seconds in observations)
    middle = sum(1.0 < seconds <= 10.0 for seconds in observations)
    assert histogram.counts == [low, middle, len(observations) - low - middle]


@settings(deadline=None, database=None)
@given(st.lists(st.floats(0, 100)))
def test_a_histogram_counts_every_observation_once(observations):
    histogram = Histogram(BOUNDS)
    for seconds in observations:
        histogram.observe(seconds)
    low, middle, high = histogram.counts
    assert low == sum(seconds <= 1 for seconds in observations)
    assert low + middle == sum(seconds <= 10 for seconds in observations)
    assert low + middle + high == len(observations)


def test_a_copy_does_not_change_any_more():
    histogram = Histogram(BOUNDS)
    copy = histogram.copy()
    histogram.observe(0.5)
    assert (copy.counts, copy.seconds) == ([0, 0, 0], 0.0)


def test_an_exchange_counts_its_attempts_and_retries():
    tally, at = Tally(BOUNDS), worker()
    lost, ok = OutcomeKind.WORKER_LOST, OutcomeKind.OK
    tally.add(exchange_at(0.0, (at, (6.0, None, lost)), (at, (7.0, 8.0, ok))), Outcome(ok, 200))
    assert tally.retries == 1
    assert tally.outcomes.by_kind() == {"ok": 1}
    assert tally.codes == {}
    assert tally.workers[at].attempts.by_kind() == {"worker_lost": 1, "ok": 1}
    assert tally.workers[at].first_byte.counts == [1, 0, 0]
    assert tally.workers[at].upstream.counts == [0, 0, 2]
    assert tally.queue.counts == [0, 1, 0]
    assert tally.request.seconds == 100.0


def test_an_attempt_that_was_withdrawn_is_no_attempt_and_no_retry():
    tally, at = Tally(BOUNDS), worker()
    exchange = exchange_at(0.0, (at, (0.0, None, OutcomeKind.REJECTED)), (at, (6.0, 7.0, OutcomeKind.OK)))
    exchange.attempts[0].error = AttemptWithdrawn("dispatch was paused")
    exchange.hold_place, exchange.held_s = 1, 6.0
    tally.add(exchange, Outcome(OutcomeKind.OK, 200))
    assert tally.retries == 0
    assert tally.workers[at].attempts.by_kind() == {"ok": 1}
    assert tally.queue.seconds == tally.hold.seconds == 6.0


def test_an_attempt_whose_client_left_is_told_as_such():
    tally, at = Tally(BOUNDS), worker()
    tally.add(exchange_at(0.0, (at, (0.0, 1.0, OutcomeKind.OK))), Outcome(OutcomeKind.CLIENT_LEFT, None, "client_left"))
    assert tally.workers[at].attempts.by_kind() == {"client_left": 1}


def test_a_refused_request_has_a_code_and_no_attempt():
    tally = Tally(BOUNDS)
    tally.add(exchange_at(0.0), Outcome(OutcomeKind.REJECTED, 503, "no_worker"))
    assert (tally.codes, sum(tally.queue.counts)) == ({"no_worker": 1}, 0)


def test_codes_are_bounded_in_number():
    tally = Tally(BOUNDS)
    for number in range(10 * MAX_CODES):
        tally.add(exchange_at(0.0), Outcome(OutcomeKind.REJECTED, 400, f"code-{number}"))
    tally.add(exchange_at(0.0), Outcome(OutcomeKind.REJECTED, 400, "code-0"))
    assert len(tally.codes) == MAX_CODES + 1
    assert tally.codes["code-0"] == 2
    assert tally.codes[OTHER] == 9 * MAX_CODES


def test_a_worker_that_is_gone_leaves_nothing_and_late_results_bring_nothing_back():
    tally, at = Tally(BOUNDS), worker()
    exchange = exchange_at(0.0, (at, (0.0, 1.0, OutcomeKind.OK)))
    tally.add(exchange, Outcome(OutcomeKind.OK, 200))
    at.state = WorkerState.REMOVED
    tally.forget(at)
    tally.add(exchange, Outcome(OutcomeKind.OK, 200))
    assert tally.workers == {}
    assert tally.outcomes.by_kind() == {"ok": 2}
