"""Whether a failed attempt may be followed by another one. Knows no HTTP and no router."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Why(StrEnum):
    """Why a request is sent once more."""

    UNREACHABLE = "unreachable"
    """Nothing of it was sent."""
    SUSPECT = "suspect"
    """A worker was lost under it, and the settings allow one more."""
    STATUS = "status"
    """A worker answered with a status that the settings name."""


@dataclass(slots=True)
class Tries:
    """The attempts of one exchange at different workers."""

    max_attempts: int
    retry_suspects: bool
    made: int = 0
    is_suspect: bool = False
    """Whether a worker was lost while it had the request and had not begun to answer."""
    has_retried_suspect: bool = False

    def after_fault(self, *, was_sent: bool, is_loss: bool, can_be_sent: bool) -> Why | None:
        """What follows when a worker failed before a byte of its answer came; None: the failure is told.

        ``is_loss``: the connection ended, rather than that something came over it which is no answer.
        """
        if was_sent and is_loss:
            self.is_suspect = True
        if self.made >= self.max_attempts or not can_be_sent:
            return None
        if not was_sent:
            return Why.UNREACHABLE
        if is_loss and self.retry_suspects and not self.has_retried_suspect:
            self.has_retried_suspect = True
            return Why.SUSPECT
        return None

    def after_status(self, *, can_be_sent: bool) -> Why | None:
        """What follows an answer with one of the statuses to retry."""
        return Why.STATUS if self.made < self.max_attempts and can_be_sent else None
