"""The attempts of one turn, each with what reads its answer."""

from __future__ import annotations

from dataclasses import dataclass

from router_core import Attempt

from .engines import AnswerReader, Ask


@dataclass(frozen=True, slots=True)
class Try:
    """What belongs to one attempt."""

    attempt: Attempt
    ask: Ask
    reader: AnswerReader | None
    weight_version: str | None


class Tries:
    """At most two are kept: the newest, and the newest of those that were sent."""

    def __init__(self) -> None:
        self._kept: list[Try] = []

    def add(self, newest: Try) -> None:
        sent = [each for each in self._kept if each.attempt.request_sent]
        self._kept = [*sent[-1:], newest]

    def answered(self) -> Try | None:
        """The one whose answer is there. One that was withdrawn has none: perhaps it was for another kind of worker."""
        return next((each for each in reversed(self._kept) if each.attempt.request_sent), None)
