"""Reserve calls: what an answer means, and what a worker's last answers mean for the next request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

REFUSED = "it refused a reservation (plugins.admission.reserve_url)"
BUSY = "reservations for it are under way (plugins.admission.max_reserve_calls)"


class Verdict(StrEnum):
    """What became of a reserve call."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    FAILED = "failed"
    """No answer in time, or none at all."""


def verdict_of(status: int, body: Any) -> Verdict:
    """2xx admits, unless the JSON says ``"admitted": false``; 0 is no answer, everything else a refusal."""
    if status == 0:
        return Verdict.FAILED
    is_refused = isinstance(body, dict) and body.get("admitted") is False
    return Verdict.ADMITTED if 200 <= status < 300 and not is_refused else Verdict.REFUSED


@dataclass(slots=True)
class Asked:
    """The reserve calls of one worker."""

    max_under_way: int
    under_way: int = 0
    refused_until: float = 0.0
    """Clock time (s)."""

    def why_not_now(self, now: float) -> str | None:
        """Why no further reservation is asked for at this time."""
        if now < self.refused_until:
            return REFUSED
        return BUSY if self.under_way >= self.max_under_way else None
