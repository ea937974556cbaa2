"""What a client is told of each kind of error, and how its exchange is said to have ended."""

from __future__ import annotations

import asyncio
import logging

from router_core.errors import (
    AttemptWithdrawn,
    ClientLeft,
    NoWorker,
    PluginError,
    Reject,
    WorkerFault,
    WorkerProtocolError,
)
from router_core.types import Answer, Exchange, Outcome, OutcomeKind

log = logging.getLogger("router_core")

SHUTTING_DOWN = "shutting_down"
"""Code of the refusal of what is new, or cut, while the router stops."""


def outcome_of(error: BaseException) -> Outcome:
    """How an exchange or attempt ended that this error stopped."""
    match error:
        case ClientLeft():
            return Outcome(OutcomeKind.CLIENT_LEFT, None, "client_left", str(error))
        case Reject(code=code) if code == SHUTTING_DOWN:
            return Outcome(OutcomeKind.TIMED_OUT, error.status, error.code, error.message)
        case Reject():
            return Outcome(OutcomeKind.REJECTED, error.status, error.code, error.message)
        case WorkerProtocolError():
            return Outcome(OutcomeKind.WORKER_ERROR, 502, error.code, str(error))
        case WorkerFault():
            return Outcome(OutcomeKind.WORKER_LOST, 502, error.code, str(error))
        case AttemptWithdrawn():
            return Outcome(OutcomeKind.REJECTED, None, "withdrawn", str(error))
        case PluginError():
            return Outcome(OutcomeKind.FAILED, 500, "plugin_error", str(error))
        case asyncio.CancelledError():
            return Outcome(OutcomeKind.FAILED, None, "cancelled", "given up while it ran")
    return Outcome(OutcomeKind.FAILED, 500, "internal_error", f"{type(error).__name__}: {error}")


def answer_for(error: BaseException, exchange: Exchange | None = None) -> Answer:
    """The error as an answer in the router's envelope. A fault of our own is logged with its trace."""
    match error:
        case NoWorker():
            return Answer.error(error, workers=error.reasons)
        case Reject():
            return Answer.error(error)
        case WorkerFault():
            worker = exchange.worker if exchange else None
            told = Reject(502, error.code, str(error))
            facts = {"worker": worker.url if worker else None, "request_sent": error.request_sent, **error.details}
            return Answer.error(told, **facts)
        case PluginError():
            return Answer.error(Reject(500, "plugin_error", str(error)), plugin=error.plugin, hook=error.hook)
    log.error("%r failed: %r", exchange, error, exc_info=error)
    return Answer.error(Reject(500, "internal_error", f"a fault of the router: {type(error).__name__}"))
