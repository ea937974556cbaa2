"""All that capture knows of one session: its trace, what it was opened with, its calls, and how it went."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .call import Call
from .retries import Evidence, RetryRule, find_retried
from .session_options import SessionOptions
from .trace import Trace

MAX_MISMATCHES = 256
"""Most findings of ``debug`` kept for one session; all are counted."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A place where a prompt differs from the same conversation rendered anew (``debug``)."""

    node_id: int
    """The answer to that prompt."""
    mismatch_type: str
    """``special_tokens``, ``environment_text``: our fault; ``assistant_text``: what the model wrote, as sampled."""
    position: int
    """The first token that differs."""
    detail: str

    def to_dict(self) -> dict[str, Any]:
        return {"mismatch_type": self.mismatch_type, "position": self.position, "detail": self.detail}


@dataclass(slots=True, eq=False)
class SessionTrace:
    """One session as capture keeps it; lives from its opening to its end."""

    session_id: str
    trace: Trace
    options: SessionOptions = field(default_factory=SessionOptions)
    opened_at: float = 0.0
    """Clock seconds."""
    is_closed: bool = False
    """Its session is gone: whatever comes now is dropped."""
    turns: int = 0
    """Answers in the trace, and those that could not be put there."""
    generation_time_s: float = 0.0
    """Seconds that workers took for the answers."""
    reward: float | None = None
    """What the session was worth; set from outside."""
    reward_extra: dict[str, Any] = field(default_factory=dict)
    """What came with the reward."""
    end_status: str | None = None
    """Why it ended, as far as capture stopped it (``max_turns``, ...) or was told."""
    uncaptured: Counter[str] = field(default_factory=Counter)
    """Turns that were answered but are not in the trace, by reason."""
    drift: Counter[str] = field(default_factory=Counter)
    """Prompts that the worker did not generate from as we meant it to, by kind."""
    debugged: Counter[str] = field(default_factory=Counter)
    """What ``debug`` found, by kind."""
    mismatches: list[Mismatch] = field(default_factory=list)
    finished_at: dict[int, float] = field(default_factory=dict)
    """Answer's node -> time of day (s) at which it was committed."""
    calls: list[Call] = field(default_factory=list)
    """Those that run, and the newest finished ones whose answer a retry may be given; oldest first."""

    # ------------------------------------------------------------------------------------------------------- retries
    def find_retried(self, rule: RetryRule, key: bytes, evidence: Evidence) -> Call | None:
        """The call whose answer this request is to be given, None if it makes one of its own."""
        equal = [call for call in self.calls if call.key == key and not self._is_extended(call)]
        return find_retried(rule, evidence, equal)

    def forget_calls(self, max_kept: int) -> None:
        """Drop finished calls that nobody may join any more, and the oldest above ``max_kept``."""
        finished = [call for call in self.calls if call.is_over or call.node_id is not None]
        kept = [call for call in finished if call.is_joinable and not self._is_extended(call)]
        dropped = set(finished) - set(kept[len(kept) - max_kept :] if max_kept else ())
        if dropped:
            self.calls = [call for call in self.calls if call not in dropped]

    def _is_extended(self, call: Call) -> bool:
        return call.node_id is not None and bool(self.trace.nodes[call.node_id].children)

    # --------------------------------------------------------------------------------------------------------- sizes
    @property
    def nbytes(self) -> int:
        """Bytes kept, those of answers kept for a retry included."""
        return self.trace.nbytes + sum(call.nbytes for call in self.calls)

    def note(self, found: list[Mismatch]) -> None:
        """Keep what ``debug`` found."""
        self.debugged.update(mismatch.mismatch_type for mismatch in found)
        self.mismatches += found[: MAX_MISMATCHES - len(self.mismatches)]

    def close(self) -> None:
        """The session is gone: stop what runs for it, and take nothing in any more."""
        self.is_closed = True
        self.trace.seal()
        for call in self.calls:
            if not call.is_over:
                call.cancel()
