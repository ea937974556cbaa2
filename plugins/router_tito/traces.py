"""The session traces of one process, and how much they may hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from router_core import Session, StateKey

from .session_trace import SessionTrace

TRACE = StateKey[SessionTrace]("tito trace")


class Bounds(Protocol):
    """The settings that bound what is kept."""

    @property
    def gc_threshold(self) -> int: ...

    @property
    def max_bytes(self) -> int: ...


class TraceTable:
    """Session id -> its trace, and the sums over all of them.

    A session's entry is bound to the session object: a second one of the same id, refused or gone, touches nothing.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, SessionTrace] = {}
        self.nodes = 0
        """Messages in all traces."""
        self.nbytes = 0
        """Bytes kept for all sessions."""
        self.evicted = 0
        """Sessions evicted for want of room so far."""
        self._counted: dict[SessionTrace, tuple[int, int]] = {}

    def __iter__(self) -> Iterator[SessionTrace]:
        return iter(self.by_id.values())

    def __len__(self) -> int:
        return len(self.by_id)

    def of(self, session: Session, make: Callable[[], SessionTrace]) -> SessionTrace:
        """The trace of an open session, made where it has none."""
        found = session.state.get(TRACE)
        if found is None:
            found = session.state[TRACE] = make()
        self.by_id.setdefault(session.id, found)
        return found

    def forget(self, session: Session) -> None:
        """The session is gone."""
        found = session.state.pop(TRACE)
        if found is None:
            return
        found.close()
        if self.by_id.get(session.id) is found:
            del self.by_id[session.id]
        nodes, nbytes = self._counted.pop(found, (0, 0))
        self.nodes -= nodes
        self.nbytes -= nbytes

    def measure(self, trace: SessionTrace) -> None:
        """Count anew what this one holds."""
        if trace.is_closed:
            return
        before = self._counted.get(trace, (0, 0))
        now = self._counted[trace] = (len(trace.trace.nodes), trace.nbytes)
        self.nodes += now[0] - before[0]
        self.nbytes += now[1] - before[1]

    def excess(self, bounds: Bounds) -> str:
        """Which bound over all sessions is passed, with its setting; "" if none is."""
        if self.nodes > bounds.gc_threshold:
            return f"more than {bounds.gc_threshold} messages were kept (plugins.tito.gc_threshold)"
        if self.nbytes > bounds.max_bytes:
            return f"more than {bounds.max_bytes} bytes were kept (plugins.tito.max_bytes)"
        return ""
