"""The newest branches of a trace, each unrolled from its root on.

A client sends its whole history each turn, nearly always that of its last one and a little more. Compared with a line
that is one comparison of two lists, and path, keys and ids of what matches are slices; walking the graph beside it
would cost microseconds a message, each turn anew.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from .canonical import is_plain_message
from .matcher import MessageKey
from .packed import Ids

if TYPE_CHECKING:
    from .node import Message

MAX_LINES = 4
"""Lines kept of one trace: an agent and a few sub-agents that take turns."""
PLACE_BYTES = 24
"""What a message costs in a line beside its ids: three references."""


@dataclass(slots=True, eq=False)
class Line:
    """One branch up to a sampled leaf. ``path``, ``sent`` and ``keys`` have an entry a message.

    ``sent`` are the messages as the client last sent them, which need not be how they are stored, and ``keys`` are
    theirs. ``ids`` are all tokens; it may grow behind this line's end, for the line that continues it.
    """

    context: bytes
    path: list[int]
    sent: list[Message]
    keys: list[MessageKey]
    ids: Ids
    plain: int
    """Leading messages of ``sent`` without numbers and booleans that count: for them ``==`` means the same message."""
    own_bytes: int
    """Length of the JSON of those of ``sent`` that are not the stored messages themselves."""
    request: Any
    """BLAKE2b of the request that the leaf answers (``graph.request_key``), to be copied."""
    untwinned: int = 0
    """Leading nodes that are the only ones under their edge, as of ``twins_seen`` twinned nodes."""
    twins_seen: int = -1

    def holds(self, node_id: int, depth: int) -> bool:
        """Whether the node is on it."""
        return depth <= len(self.path) and self.path[depth - 1] == node_id

    def goes_on(self, path: Sequence[int]) -> bool:
        """Whether a path goes on from its end."""
        return len(path) > len(self.path) and path[len(self.path) - 1] == self.path[-1]

    def request_key(self, keys: Sequence[MessageKey]) -> bytes:
        """``graph.request_key`` of a request with these keys and this line's context."""
        key: bytes = self.hash_of(keys).digest()
        return key

    def hash_of(self, keys: Sequence[MessageKey]) -> Any:
        """What ``request_key`` is the digest of; only what comes behind this line's own request is hashed."""
        asked = self.keys[:-1]
        if list(keys[: len(asked)]) != asked:
            return _hash(self.context, keys)
        request = self.request.copy()
        request.update(b"".join([key.hash for key in keys[len(asked) :]]))
        return request

    def clear(self, twinned: Set[int]) -> int:
        """Leading messages for which being equal to them means being on this path, and on no other."""
        if self.twins_seen != len(twinned):
            self.twins_seen = len(twinned)
            places = (place for place, node_id in enumerate(self.path) if node_id in twinned)
            self.untwinned = next(places, len(self.path)) if twinned else len(self.path)
        return min(self.plain, self.untwinned)

    def common(self, messages: Sequence[Any], twinned: Set[int]) -> int:
        """How many of ``messages`` begin with all that is clear here, 0 if they do not.

        The answer at the end is stored as the worker gave it; a client may send it back in its own words.
        """
        clear = min(self.clear(twinned), len(messages))
        sent = min(clear, len(self.path) - 1)
        if self.sent[:sent] != list(messages[:sent]):
            return 0
        return clear if clear > sent and self.sent[sent] == messages[sent] else sent


class Lines:
    """The newest lines of one graph. The loop that owns the graph writes; threads may look up."""

    def __init__(self) -> None:
        self._lines: tuple[Line, ...] = ()
        self.twinned: set[int] = set()
        """Nodes that share their edge with another one."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(4 * len(line.ids) + PLACE_BYTES * len(line.path) + line.own_bytes for line in self._lines)

    def holding(self, node_id: int, depth: int) -> Line | None:
        """A line with this node on it."""
        return next((line for line in self._lines if line.holds(node_id, depth)), None)

    def begun_by(self, messages: Sequence[Any], context: bytes) -> tuple[Line | None, int]:
        """The line that ``messages`` begin with, as far as it is clear, and how many of its messages that are.

        A client that changed a message of a line, other than the answer at its end, does not begin with it.
        """
        best: Line | None = None
        most = 0
        for line in self._lines:
            count = line.common(messages, self.twinned) if line.context == context else 0
            if count > most:
                best, most = line, count
        return best, most

    def put(self, line: Line) -> None:
        """Keep a line in the place of those that it goes on from, or beside the others."""
        others = [other for other in self._lines if not other.goes_on(line.path)]
        self._lines = (line, *others[: MAX_LINES - 1])


def make_line(
    context: bytes,
    path: list[int],
    sent: list[Message],
    keys: list[MessageKey],
    ids: Ids,
    *,
    plain: int,
    own: int,
    known: Line | None,
) -> Line:
    """A line whose first ``plain`` messages are those of ``known``; ``own`` is the ``own_bytes`` of the others."""
    while plain < len(sent) and is_plain_message(sent[plain]):
        plain += 1
    asked = keys[:-1]
    request = known.hash_of(asked) if known is not None else _hash(context, asked)
    return Line(context, path, sent, keys, ids, plain, own + (known.own_bytes if known is not None else 0), request)


def _hash(context: bytes, keys: Sequence[MessageKey]) -> Any:
    return blake2b(context + b"".join([key.hash for key in keys]), digest_size=16)
