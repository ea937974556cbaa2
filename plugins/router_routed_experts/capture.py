"""The collector behind the plugin: what is asked for a request, and what becomes of its answer. It knows no HTTP."""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from dataclasses import dataclass, field

from router_routed_experts.asking import Asked
from router_routed_experts.reading import Part
from router_routed_experts.reasons import Reason, RowsError
from router_routed_experts.rows import Layout, Verdict, judge
from router_routed_experts.sessions import Continued, SessionRows
from router_routed_experts.store import RowStore

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Plan:
    """What one request asks for: rows from ``start`` on, behind those of ``continued``."""

    asked: Asked
    start: int = 0
    continued: Continued | None = None
    session_id: str | None = None


@dataclass(slots=True)
class Counts:
    """What happened so far."""

    complete: int = 0
    """Answers whose rows are whole."""
    rows: int = 0
    """Rows kept."""
    incomplete: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Answers whose rows are not, by reason and worker."""


class Capture:
    """Plans requests, judges answers, keeps rows."""

    def __init__(self, store: RowStore, sessions: SessionRows, layout: Layout | None) -> None:
        self.store = store
        self.sessions = sessions
        self.counts = Counts()
        self._layout = layout

    def plan(self, asked: Asked, session_id: str | None) -> Plan:
        """In a session only new rows are asked for, unless the client asks itself: then its rows are kept as it asks.

        Never rows from the end of the prompt on: vLLM dies of that, and the first sampled token needs its prompt's last
        row.
        """
        if session_id is None or asked.prompt_ids is None:
            return Plan(asked, asked.start, None, session_id)
        continued = self.sessions.find(session_id, asked.prompt_ids)
        if continued is None or continued.stop < asked.start:
            return Plan(asked, asked.start, None, session_id)
        start = asked.start if asked.is_own else min(continued.stop, len(asked.prompt_ids) - 1)
        return Plan(asked, start, continued, session_id)

    def judge(self, plan: Plan, part: Part) -> Verdict:
        """Whether the rows of one choice are whole. CPU work of some milliseconds for many rows: for a thread."""
        choice = part.choice
        prompt_tokens, output_tokens = choice.prompt_tokens, choice.counted
        if plan.asked.prompt_tokens is not None:
            prompt_tokens = plan.asked.prompt_tokens
        if choice.is_aborted and output_tokens is None and part.decoded is None:
            output_tokens = 0  # an abort that says nothing of tokens has none
        if part.decoded is not None and (prompt_tokens is None or output_tokens is None):
            return Verdict(reason=Reason.TOKENS_UNKNOWN, detail="the answer does not say how many tokens it has")
        return judge(
            part.decoded,
            prompt_tokens=prompt_tokens or 0,
            output_tokens=1 if output_tokens is None else output_tokens,
            start=plan.start,
            layout=self._layout,
            is_aborted=choice.is_aborted,
        )

    def keep(self, plan: Plan, part: Part, verdict: Verdict, worker: str) -> None:
        """Store what was judged; what is wrong with it is counted and told once."""
        continued = plan.continued
        entry = self.store.add(
            part.key,
            verdict,
            worker,
            parent=continued.entry if continued else None,
            start=continued.stop if continued else plan.asked.start,
            token_ids=self._token_ids(plan, part),
        )
        if entry.complaints:
            inherited = len(continued.entry.complaints) if continued else 0
            for complaint in entry.complaints[inherited:]:
                self._complain(part.key, complaint.reason, complaint.detail, worker)
        else:
            self.counts.complete += 1
            self.counts.rows += len(verdict.block.experts) if verdict.block else 0
        if plan.session_id is not None and entry.token_ids is not None:
            self.sessions.add(plan.session_id, part.key, continued)

    def lose(self, plan: Plan, error: RowsError, worker: str, key: str) -> None:
        """An answer that could not be read, or that broke off: its sample is incomplete, whatever it had."""
        verdict = Verdict(reason=error.reason, detail=error.detail)
        parent = plan.continued.entry if plan.continued else None
        self.store.add(plan.asked.rid or key, verdict, worker, parent=parent)
        self._complain(plan.asked.rid or key, error.reason, error.detail, worker)

    def _complain(self, key: str, reason: Reason, detail: str, worker: str) -> None:
        self.counts.incomplete[reason, worker] += 1
        log.warning("routed experts of %s are incomplete, worker %s: %s: %s", key, worker, reason, detail)

    @staticmethod
    def _token_ids(plan: Plan, part: Part) -> array[int] | None:
        """All ids of the trajectory, for a session's next turn; None where not all of them were told.

        A worker whose streams are not cumulative tells in its last event only the last ones.
        """
        prompt_ids, output_ids = plan.asked.prompt_ids, part.choice.output_ids
        if plan.session_id is None or prompt_ids is None or output_ids is None:
            return None
        if len(output_ids) != part.choice.counted:
            return None
        return prompt_ids + output_ids
