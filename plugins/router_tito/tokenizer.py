"""What rendering needs of a tokenizer. Another plugin holds the real one; this one never imports a model library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Tokenizer(Protocol):
    """Text to ids and back for one model, with its chat template. Called from threads, by one at a time or many."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of control tokens (end of turn, role markers, end of text)."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, control tokens typed in it read as such and none added: as engines encode a prompt.

        One call for all texts, which frees the GIL where encoding them one by one would hold it.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, control tokens included, nothing cleaned up."""
        ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any],
    ) -> str:
        """The conversation as text. Whatever the template raises passes."""
        ...


class TokenizerDoor(Protocol):
    """What the `tokenizer` hook answers: a tokenizer that may still be loading, and the threads it works in."""

    async def ready(self) -> Tokenizer:
        """The loaded tokenizer. Raises Reject while there is none, or there will be none."""
        ...

    async def run(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Calls ``work`` in one of the tokenizers' threads; what it raises is raised here."""
        ...
