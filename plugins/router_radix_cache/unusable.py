"""Why an answer is not kept."""

from __future__ import annotations

from enum import StrEnum


class Unusable(StrEnum):
    """Why an answer is not stored. The value is its name in metrics and statistics."""

    ABORTED = "aborted"
    UNFINISHED = "unfinished"
    """No finish reason: the stream broke off, or the worker did not say how it ended."""
    EMPTY = "empty"
    """No token was sampled."""
    UNREADABLE = "unreadable"
    """Not the JSON of a /generate answer."""
    TOO_LARGE = "too_large"
    NO_LOGPROBS = "no_logprobs"
    LENGTHS_DIFFER = "lengths_differ"
    """Not one logprob for each id, or not all ids (a worker whose streams are not cumulative)."""
    IDS_DIFFER = "ids_differ"
    """The ids beside the logprobs are not the output ids."""
    PROMPT_DIFFERS = "prompt_differs"
    """The worker counted other prompt tokens than it was sent."""
    REFUSED = "refused"
    """Ids or text that no trajectory can have."""
    FAULT = "fault"
    """A fault of the router's own."""


class UnusableError(ValueError):
    """An answer that cannot be stored, and why."""

    def __init__(self, reason: Unusable, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
