"""What a client is told of each kind of error, and how its exchange is said to have ended."""

import asyncio
import json

import pytest

from router_core import (
    ClientLeft,
    MalformedBody,
    NoWorker,
    OutcomeKind,
    PluginError,
    Reject,
    WorkerLost,
    WorkerProtocolError,
    WorkerUnreachable,
)
from router_core.failures import SHUTTING_DOWN, answer_for, outcome_of

CASES = [
    (Reject(418, "no_tea", "today", "x-tea"), OutcomeKind.REJECTED, 418, "no_tea"),
    (MalformedBody("not JSON"), OutcomeKind.REJECTED, 400, "malformed_body"),
    (NoWorker("nobody", {"http://h": "out"}), OutcomeKind.REJECTED, 503, "no_worker"),
    (Reject(503, SHUTTING_DOWN, "stops"), OutcomeKind.TIMED_OUT, 503, "shutting_down"),
    (WorkerUnreachable("refused", refused=True), OutcomeKind.WORKER_LOST, 502, "worker_unreachable"),
    (WorkerLost("gone", request_sent=True), OutcomeKind.WORKER_LOST, 502, "worker_lost"),
    (WorkerProtocolError("no HTTP"), OutcomeKind.WORKER_ERROR, 502, "worker_protocol_error"),
    (PluginError("p", "identify", "raised"), OutcomeKind.FAILED, 500, "plugin_error"),
    (ZeroDivisionError("secret /path"), OutcomeKind.FAILED, 500, "internal_error"),
]


@pytest.mark.parametrize(("error", "kind", "status", "code"), CASES, ids=lambda value: type(value).__name__)
def test_each_error_has_its_status_code_and_outcome(error: Exception, kind: str, status: int, code: str) -> None:
    outcome = outcome_of(error)
    assert (outcome.kind, outcome.status, outcome.code, outcome.is_ok) == (kind, status, code, False)
    answer = answer_for(error)
    assert (answer.status, answer.error_code, answer.headers.get("x-router-error")) == (status, code, code)
    told = json.loads(answer.ready_body or b"")["error"]
    assert (told["code"], told["type"]) == (code, "invalid_request_error" if status < 500 else "router_error")


def test_a_fault_of_our_own_tells_its_kind_and_no_more() -> None:
    body = answer_for(ZeroDivisionError("secret /path")).ready_body or b""
    assert b"ZeroDivisionError" in body
    assert b"secret" not in body


def test_facts_stand_beside_the_message() -> None:
    told = json.loads(answer_for(WorkerLost("gone", request_sent=True)).ready_body or b"")["error"]
    assert told["request_sent"] is True
    told = json.loads(answer_for(NoWorker("nobody", {"http://h": "out"})).ready_body or b"")["error"]
    assert told["workers"] == {"http://h": "out"}
    told = json.loads(answer_for(PluginError("p", "identify", "raised")).ready_body or b"")["error"]
    assert (told["plugin"], told["hook"]) == ("p", "identify")


def test_a_client_that_left_and_what_was_cancelled_have_no_status() -> None:
    assert outcome_of(ClientLeft("left")).kind is OutcomeKind.CLIENT_LEFT
    assert outcome_of(ClientLeft("left")).status is None
    assert (outcome_of(asyncio.CancelledError()).status, outcome_of(asyncio.CancelledError()).code) == (
        None,
        "cancelled",
    )
