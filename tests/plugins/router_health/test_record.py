import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_health.record import HealthRecord, Limits, Sign, Verdict

from router_core import WorkerState

LIMITS = Limits(max_failures=3, starting_timeout_s=100.0, interval_s=2.0, max_interval_s=30.0)
READY, STARTING, OUT = WorkerState.READY, WorkerState.STARTING, WorkerState.QUARANTINED


def record_of_a_live_worker() -> HealthRecord:
    record = HealthRecord(1, created_at=0.0)
    record.after_probe(Sign.ANSWERED, READY, LIMITS, 1.0, has_bytes=False)
    return record


def probe(
    record: HealthRecord, sign: Sign, state: WorkerState = READY, now: float = 2.0, *, has_bytes: bool = False
) -> Verdict:
    return record.after_probe(sign, state, LIMITS, now, has_bytes=has_bytes)


def request(record: HealthRecord, sign: Sign, state: WorkerState = READY, ended_at: float = 2.0) -> Verdict:
    return record.after_request(sign, state, LIMITS, ended_at)


# ----------------------------------------------------------------------------------------------------------- failures
@pytest.mark.parametrize("sign", [Sign.FAILED, Sign.SILENT, Sign.NOT_UP])
def test_consecutive_failed_probes_put_a_worker_out(sign):
    record = record_of_a_live_worker()
    assert [probe(record, sign) for _ in range(3)] == [Verdict.STAY, Verdict.STAY, Verdict.OUT]


def test_a_worker_that_fails_two_probes_of_three_stays_in_for_ever():
    record = record_of_a_live_worker()
    for _ in range(100):
        verdicts = [probe(record, sign) for sign in (Sign.FAILED, Sign.FAILED, Sign.ANSWERED)]
        assert verdicts == [Verdict.STAY] * 3


def test_a_refused_connection_puts_a_worker_out_at_once():
    assert probe(record_of_a_live_worker(), Sign.REFUSED) is Verdict.OUT
    assert request(record_of_a_live_worker(), Sign.REFUSED) is Verdict.OUT


def test_consecutive_failed_requests_put_a_worker_out_although_its_probes_are_answered():
    record = record_of_a_live_worker()
    verdicts = []
    for _ in range(3):
        verdicts.append(request(record, Sign.FAILED, ended_at=5.0))
        probe(record, Sign.ANSWERED, now=5.0)
    assert verdicts == [Verdict.STAY, Verdict.STAY, Verdict.OUT]


def test_a_served_request_clears_failures_of_both_kinds():
    record = record_of_a_live_worker()
    for _ in range(2):
        probe(record, Sign.FAILED)
        request(record, Sign.FAILED)
    request(record, Sign.ANSWERED)
    assert record.failures == 0


def test_back_pressure_is_neither_a_failure_nor_a_success():
    record = record_of_a_live_worker()
    request(record, Sign.FAILED)
    assert [request(record, Sign.BUSY) for _ in range(10)] == [Verdict.STAY] * 10
    assert record.request_failures == 1


def test_bytes_excuse_a_probe_that_was_not_answered():
    record = record_of_a_live_worker()
    assert [probe(record, Sign.SILENT, has_bytes=True) for _ in range(10)] == [Verdict.STAY] * 10
    assert record.failures == 0


def test_bytes_excuse_no_refusal_and_no_bad_answer():
    record = record_of_a_live_worker()
    assert probe(record, Sign.REFUSED, has_bytes=True) is Verdict.OUT
    probe(record, Sign.FAILED, has_bytes=True)
    assert record.failures == 1


def test_a_refusal_that_is_told_after_a_newer_success_says_nothing():
    record = record_of_a_live_worker()
    probe(record, Sign.ANSWERED, now=50.0)
    assert request(record, Sign.REFUSED, ended_at=40.0) is Verdict.STAY


# ----------------------------------------------------------------------------------------------------------- starting
@pytest.mark.parametrize("sign", [Sign.REFUSED, Sign.NOT_UP, Sign.SILENT])
def test_a_worker_that_never_answered_is_starting_and_nothing_is_counted(sign):
    record = HealthRecord(1, created_at=0.0)
    assert probe(record, sign) is Verdict.AWAIT_START
    assert [probe(record, sign, STARTING, now=now) for now in (4.0, 6.0, 99.0)] == [Verdict.AWAIT_START] * 3
    assert record.failures == 0


def test_a_starting_worker_is_back_with_its_first_success_and_needs_no_trial():
    record = HealthRecord(1, created_at=0.0)
    probe(record, Sign.REFUSED)
    assert probe(record, Sign.ANSWERED, STARTING) is Verdict.BACK


def test_a_request_that_a_starting_worker_serves_shows_that_it_is_up():
    record = HealthRecord(1, created_at=0.0)
    assert request(record, Sign.REFUSED) is Verdict.AWAIT_START
    assert request(record, Sign.ANSWERED, STARTING) is Verdict.BACK


def test_a_worker_that_is_starting_for_too_long_has_failed():
    record = HealthRecord(1, created_at=0.0)
    assert probe(record, Sign.REFUSED, STARTING, now=100.5) is Verdict.OUT


def test_a_first_answer_that_is_a_failure_is_counted():
    record = HealthRecord(1, created_at=0.0)
    assert [probe(record, Sign.FAILED) for _ in range(3)] == [Verdict.STAY, Verdict.STAY, Verdict.OUT]


# ---------------------------------------------------------------------------------------------------------- the trial
def test_a_worker_that_came_back_gets_few_requests_until_one_is_served():
    record = record_of_a_live_worker()
    record.leave(is_refusing=True)
    record.come_back(10.0, inflight=5, on_trial=True)
    assert [record.has_room(inflight, trial_requests=4) for inflight in (5, 8, 9, 10)] == [True, True, False, False]
    request(record, Sign.ANSWERED, ended_at=11.0)
    assert record.has_room(500, trial_requests=4)


def test_a_byte_since_its_return_ends_a_trial():
    record = record_of_a_live_worker()
    record.come_back(10.0, inflight=0, on_trial=True)
    record.see_byte(9.0)
    assert not record.has_room(4, trial_requests=4)
    record.see_byte(10.5)
    assert record.has_room(4, trial_requests=4)


def test_one_failed_trial_puts_a_worker_out_again_and_doubles_the_pause():
    record = record_of_a_live_worker()
    pauses = []
    for now in (10.0, 20.0, 30.0, 40.0):
        record.leave(is_refusing=False)
        pauses.append(record.pause_s(OUT, LIMITS))
        assert probe(record, Sign.ANSWERED, OUT, now=now) is Verdict.BACK
        record.come_back(now, inflight=0, on_trial=True)
        assert request(record, Sign.FAILED, ended_at=now + 1) is Verdict.OUT
    assert pauses == [2.0, 4.0, 8.0, 16.0]


def test_vain_probes_are_sent_ever_more_rarely_up_to_a_bound():
    record = record_of_a_live_worker()
    record.leave(is_refusing=True)
    pauses = []
    for _ in range(6):
        probe(record, Sign.REFUSED, OUT)
        pauses.append(record.pause_s(OUT, LIMITS))
    assert pauses == [4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert record.pause_s(READY, LIMITS) == record.pause_s(STARTING, LIMITS) == 2.0


def test_an_unanswered_probe_brings_a_worker_back_that_sends_bytes():
    record = record_of_a_live_worker()
    record.leave(is_refusing=False)
    assert probe(record, Sign.SILENT, OUT, has_bytes=True) is Verdict.BACK


SIGNS = st.tuples(st.sampled_from(["probe", "request"]), st.sampled_from(list(Sign)), st.booleans())


@settings(deadline=None, database=None)
@given(st.lists(SIGNS, max_size=60))
def test_whatever_happens_one_answered_probe_brings_a_worker_back(signs):
    record, state, now = HealthRecord(1, created_at=0.0), READY, 0.0
    for kind, sign, has_bytes in [*signs, ("probe", Sign.ANSWERED, False)]:
        now += 1.0
        if kind == "probe":
            verdict = probe(record, sign, state, now, has_bytes=has_bytes)
        else:
            verdict = request(record, sign, state, now)
        if verdict is Verdict.OUT and state is not OUT:
            state = OUT
            record.leave(is_refusing=sign is Sign.REFUSED)
        elif verdict is Verdict.AWAIT_START and state is not OUT:
            state = STARTING
        elif verdict is Verdict.BACK:
            record.come_back(now, inflight=0, on_trial=state is OUT)
            state = READY
    assert state is READY
