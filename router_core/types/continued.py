"""What a plugin that continues aborted generations and others need of each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from router_core.types.state import StateKey


@dataclass(frozen=True, slots=True)
class InTokens:
    """A chat turn as its worker's call for tokens would have had it.

    ``path`` is that call's (``/generate``, ``/v1/completions``), ``request`` its JSON for the whole answer, ``answer``
    what it would have answered so far.
    """

    path: str
    request: dict[str, Any]
    answer: dict[str, Any]


class TokenForm(Protocol):
    """The same chat turn in its worker's call for tokens: ids in, ids out, and nothing parsed.

    A worker parses chat from an answer's own beginning, so that the rest of an aborted one cannot be had as chat. Who
    captures a turn offers this, since it can parse ids itself.
    """

    is_taken: bool
    """Set by who continues the turn, once and for good: from then on the turn's attempts are written in the call for
    tokens, and what follows of its answer (all of it, where it is not streamed) is in that form, joined."""

    async def of(self, told: bytes, *, is_stream: bool) -> InTokens | None:
        """An aborted chat answer, all its bytes as the worker sent them; None where that would not be exact."""
        ...


TOKEN_FORM: StateKey[TokenForm] = StateKey("token form")
"""On an exchange: the token form of its chat turn, of the newest attempt; absent where there is none."""

KEPT_VERSION: StateKey[str | None] = StateKey("kept version")
"""On an exchange: the weight version of the first token that is kept of aborted attempts, None where nobody knows it;
absent while nothing is kept."""
