"""Which trajectories of a session may go on: the next prompt continues one of them, and only new rows are asked for."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from router_routed_experts.store import Entry, RowStore

MAX_BRANCHES = 16
"""Trajectories of one session that may still go on; the oldest is forgotten first."""


@dataclass(frozen=True, slots=True)
class Continued:
    """An earlier trajectory of the session, and the row up to which the new prompt shares those of it."""

    key: str
    entry: Entry
    stop: int
    is_whole: bool
    """Whether the prompt begins with all its tokens."""


class SessionRows:
    """The open ends of each session, by the keys of their entries in the store."""

    def __init__(self, store: RowStore, *, max_sessions: int) -> None:
        self._store = store
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: str, prompt_ids: array[int]) -> Continued | None:
        """The trajectory that shares the most tokens with a prompt, from the first one on; None when none does."""
        best: Continued | None = None
        most = 0
        for key in reversed(self._sessions.get(session_id, ())):
            entry = self._store.peek(key)
            if entry is None or entry.token_ids is None:
                continue
            shared = shared_start(entry.token_ids, prompt_ids)
            if shared > most:
                most = shared
                best = Continued(key, entry, min(shared, entry.table.stop), shared == len(entry.token_ids))
        return best

    def add(self, session_id: str, key: str, continued: Continued | None) -> None:
        """Note a new trajectory; the one that it continues whole goes on no more by itself."""
        keys = self._sessions.setdefault(session_id, OrderedDict())
        self._sessions.move_to_end(session_id)
        if continued is not None and continued.is_whole and continued.key != key:
            keys.pop(continued.key, None)
            self._store.forget_tokens(continued.key)
        keys[key] = None
        keys.move_to_end(key)
        if len(keys) > MAX_BRANCHES:
            keys.popitem(last=False)
        if len(self._sessions) > self._max_sessions:
            self._sessions.popitem(last=False)

    def keys(self, session_id: str) -> list[str]:
        """The open ends of a session, oldest first."""
        return list(self._sessions.get(session_id, ()))

    def described(self, session_id: str) -> list[dict[str, Any]]:
        """What is kept for the open ends of a session, oldest first."""
        found = [(key, self._store.peek(key)) for key in self.keys(session_id)]
        return [
            {
                "rid": key,
                "rows": entry.table.row_count,
                "first_row": entry.table.start,
                "complete": entry.is_complete,
                "reasons": [str(complaint.reason) for complaint in entry.complaints],
            }
            for key, entry in found
            if entry is not None
        ]

    def forget(self, session_id: str) -> None:
        """A session is gone; its rows are still served by rid."""
        self._sessions.pop(session_id, None)


def shared_start(first: array[int], second: array[int]) -> int:
    """How many tokens two sequences begin with alike."""
    size = min(len(first), len(second))
    if not size:
        return 0
    differ = np.frombuffer(first, np.int32, size) != np.frombuffer(second, np.int32, size)
    return int(differ.argmax()) if differ.any() else size
