"""What the cache needs of a tokenizer. Another plugin holds the real one; this one never imports a model library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """Text to ids and back for one model. Its methods are for threads, by one at a time or many.

    One that has a true ``decodes_by_token`` says that its ``decode`` is what the ``token_bytes`` add up to, wherever
    that is UTF-8: then it is not asked for both.
    """

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of control tokens (end of turn, role markers, end of text)."""
        ...

    def encode_with_ends(
        self, texts: Sequence[str], *, add_special_tokens: bool = False
    ) -> list[tuple[list[int], list[int]]]:
        """Ids of each text, and where each token ends: an offset in bytes of the UTF-8 text."""
        ...

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes | None]:
        """The bytes each id stands for; None for an id without a token."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, control tokens included."""
        ...


class Door(Protocol):
    """What the `tokenizer` hook answers: a tokenizer that may still be loading, and the threads it works in."""

    async def ready(self) -> Tokenizer:
        """The tokenizer, or Reject (503) when it takes too long."""
        ...

    async def run(self, work: Callable[..., Any], *args: Any) -> Any:
        """Calls ``work`` in one of its threads."""
        ...
