from router_health.pool import Member, may_eject

READY, OUT, REFUSING = Member(True), Member(False), Member(False, is_refusing=True)


def test_the_last_ready_worker_stays_in():
    assert not may_eject([], 1.0)
    assert not may_eject([OUT, REFUSING], 1.0)


def test_at_most_the_share_is_out():
    assert may_eject([READY], 0.5)
    assert not may_eject([READY, READY], 0.33)
    assert may_eject([READY, READY, READY, OUT], 0.5) is True
    assert may_eject([READY, READY, OUT], 0.5) is True
    assert may_eject([READY, READY, OUT, OUT], 0.5) is False


def test_workers_that_refuse_connections_are_not_counted_against_the_share():
    assert may_eject([READY, REFUSING, REFUSING], 0.5)


def test_a_share_of_nothing_keeps_every_worker_that_takes_connections():
    assert not may_eject([READY, READY, READY], 0.0)
