import pytest
from router_health.probe import HEALTH, READY, SLOW_S, ProbePath, read
from router_health.record import Sign

from router_core import ControlAnswer


@pytest.mark.parametrize(
    ("answer", "sign"),
    [
        (ControlAnswer(200), Sign.ANSWERED),
        (ControlAnswer(204), Sign.ANSWERED),
        (ControlAnswer(307), Sign.ANSWERED),
        (ControlAnswer(401), Sign.ANSWERED),
        (ControlAnswer(404), Sign.ANSWERED),
        (ControlAnswer(429), Sign.ANSWERED),
        (ControlAnswer(500), Sign.FAILED),
        (ControlAnswer(503), Sign.NOT_UP),
        (ControlAnswer(0, error="refused", refused=True), Sign.REFUSED),
        (ControlAnswer(0, error="no answer within 5 s", timed_out=True), Sign.SILENT),
        (ControlAnswer(0, error="Server disconnected"), Sign.FAILED),
    ],
)
def test_an_answer_is_read_as_a_sign(answer, sign):
    assert read(answer, HEALTH)[0] is sign


def test_a_bad_answer_has_a_reason_that_names_the_path():
    assert read(ControlAnswer(500), HEALTH)[1] == "/health answered 500"
    assert read(ControlAnswer(0, error="no answer within 5 s", timed_out=True), READY)[1] == (
        "/ready: no answer within 5 s"
    )


def test_a_quick_health_path_is_kept():
    path = ProbePath()
    assert path.learn(200, 0.01) is False
    assert path.path == HEALTH


def test_a_slow_health_path_gives_way_to_ready():
    path = ProbePath()
    path.learn(200, SLOW_S + 0.1)
    assert path.path == READY
    path.learn(200, 0.01)
    assert path.path == READY


def test_without_ready_the_health_path_is_asked_for_the_verdict_and_ever_after():
    path = ProbePath()
    path.learn(200, 4.0)
    assert path.learn(404, 0.01) is True
    assert path.path == HEALTH
    path.learn(200, 4.0)
    assert path.path == HEALTH


def test_a_ready_path_that_never_answered_is_left_again():
    path = ProbePath()
    path.learn(0, 10.0)
    assert path.path == READY
    path.learn(0, 10.0)
    assert path.path == HEALTH


def test_a_ready_path_that_once_answered_is_kept_when_it_falls_silent():
    path = ProbePath(READY, has_ready=True)
    path.learn(0, 10.0)
    assert path.path == READY
