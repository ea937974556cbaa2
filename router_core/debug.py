"""``x-router-debug: 1``: the answer says who was chosen, from whom, why not others, and how long it took."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from router_core.errors import Reject
from router_core.types import Answer, Attempt, Exchange

HEADER = "x-router-debug"
TIMING_HEADER = "server-timing"
MAX_CHARACTERS = 4096
"""Longest JSON in the header; workers that do not fit are counted instead of shown."""
MAX_REASON_CHARACTERS = 200
MAX_ATTEMPTS = 8
_ROOM = (1024, 256, 64, 16, 4, 1, 0)


def is_wanted(value: str | None) -> bool:
    """Whether a request's header asks for it. Raises Reject (400) for what is neither yes nor no."""
    if value is None or value in ("0", "false", ""):
        return False
    if value in ("1", "true"):
        return True
    raise Reject(400, "bad_value", f"{HEADER} must be 1 or 0, not {value[:64]!r}", HEADER)


def show(exchange: Exchange, answer: Answer, plugins: Sequence[str], now: float) -> None:
    """Adds the decision and the times so far (milliseconds) to an answer."""
    answer.headers.set(HEADER, describe(exchange, plugins))
    answer.headers.add(TIMING_HEADER, timing(exchange, now))


def describe(exchange: Exchange, plugins: Sequence[str]) -> str:
    """The newest decision of an exchange as ASCII JSON of at most `MAX_CHARACTERS`."""
    decision = exchange.decision
    scores = dict(decision.scores or {}) if decision else {}
    best_first = sorted(decision.candidates if decision else (), key=lambda worker: -scores.get(worker, 0.0))
    out = list((decision.out or {}).items()) if decision else []
    text = ""
    for room in _ROOM:
        told: dict[str, Any] = {
            "exchange": exchange.id,
            "worker": decision.chosen.url if decision and decision.chosen else None,
            "candidates": {worker.url: round(scores.get(worker, 0.0), 6) for worker in best_first[:room]},
            "out": {url: reason[:MAX_REASON_CHARACTERS] for url, reason in out[:room]},
            "attempts": [_attempt(attempt) for attempt in exchange.attempts[-MAX_ATTEMPTS:][: room or 1]],
            "held_s": round(exchange.held_s, 6),
            "plugins": list(plugins[:room]),
        }
        if hidden := max(0, len(best_first) - room) + max(0, len(out) - room):
            told["not_shown"] = hidden
        text = json.dumps(told, separators=(",", ":"))
        if len(text) <= MAX_CHARACTERS:
            break
    return text[:MAX_CHARACTERS]


def timing(exchange: Exchange, now: float) -> str:
    """A Server-Timing field: before the first attempt, each attempt up to its answer's first byte, and all so far."""
    attempts = exchange.attempts
    queued_until = attempts[0].started_at if attempts else now
    parts = [("queue", queued_until - exchange.started_at)]
    for attempt in attempts[-MAX_ATTEMPTS:]:
        until = attempt.first_byte_at or attempt.ended_at or now
        parts.append((f'attempt;desc="{attempt.worker.id}"', until - attempt.started_at))
    parts.append(("total", now - exchange.started_at))
    return ", ".join(f"{name};dur={max(0.0, seconds) * 1000:.3f}" for name, seconds in parts)


def _attempt(attempt: Attempt) -> dict[str, Any]:
    told: dict[str, Any] = {"worker": attempt.worker.url, "status": attempt.status}
    if attempt.error is not None:
        told["error"] = str(attempt.error)[:MAX_REASON_CHARACTERS]
    return told
