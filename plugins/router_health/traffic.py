"""What requests show of their workers."""

from __future__ import annotations

from router_core import Attempt, WorkerFault, WorkerUnreachable
from router_health.record import Sign


def sign_of(attempt: Attempt) -> Sign | None:
    """What an attempt that has ended showed of its worker; None where it says nothing, as when the client left early.

    4xx is the client's own doing, 429 and 503 are back-pressure, and 501 says what a server cannot do.
    """
    error, status = attempt.error, attempt.status
    if error is not None:
        if isinstance(error, WorkerUnreachable) and error.refused:
            return Sign.REFUSED
        if isinstance(error, WorkerFault):
            return Sign.FAILED
    if status is None:
        return None
    if status < 500 and status != 429:
        return Sign.ANSWERED
    if status in (429, 503):
        return Sign.BUSY
    return Sign.ANSWERED if status == 501 else Sign.FAILED
