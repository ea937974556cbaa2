"""One loaded tokenizer. Its methods may be called from many threads at a time: none changes it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import accumulate, takewhile
from typing import Any

from router_core import Reject
from router_hf_tokenizer.pieces import Pieces, byte_level_piece
from router_hf_tokenizer.source import HUB_NAME


class HfTokenizer:
    """Text to ids and back for one model, with its chat template.

    It calls the Rust tokenizer itself and never ``__call__`` of transformers, which sets truncation and padding on the
    shared object at each call. Encoding goes through the batch API, which frees the GIL where ``encode`` holds it.
    """

    def __init__(self, loaded: Any, *, chat_template: str | None = None, max_characters: int) -> None:
        """``loaded`` is a fast tokenizer of transformers; no one else may use it."""
        from tokenizers.decoders import ByteLevel

        self._loaded = loaded
        self._backend = loaded.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = False
        self._chat_template = chat_template
        self._max_characters = max_characters
        added = self._backend.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        is_byte_level = isinstance(self._backend.decoder, ByteLevel)
        self._pieces = Pieces(
            self._backend.id_to_token,
            {token_id: token.content for token_id, token in added.items()},
            is_byte_level=is_byte_level,
        )
        self.decodes_by_token: bool = is_byte_level and all(
            byte_level_piece(token.content) == token.content.encode() for token in added.values()
        )
        """Whether `decode` gives what the `token_bytes` add up to, wherever that is UTF-8: a byte-level decoder puts
        the bytes of all tokens in a row, and takes an added token for its text."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of control tokens (end of turn, role markers, end of text)."""
        return self._special_ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, control tokens typed in it read as such and none added.

        Raises Reject (413) when all texts together are longer than is allowed, ValueError for half a surrogate pair.
        """
        return [encoding.ids for encoding in self._encode(texts, add_special_tokens=False)]

    def encode_with_ends(
        self, texts: Sequence[str], *, add_special_tokens: bool = False
    ) -> list[tuple[list[int], list[int]]]:
        """The same, and where each token ends: an offset in bytes of the UTF-8 text, never decreasing.

        A token that holds a part of a character ends at that byte, or (where the text is normalised) behind the whole
        character. ``add_special_tokens``: as engines encode the text of a prompt, with what the model wants before or
        behind it; such a token ends where the one before it does.
        """
        encodings = self._encode(texts, add_special_tokens=add_special_tokens)
        return [
            (encoding.ids, self._ends(text, encoding.ids, encoding))
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, control tokens included, nothing cleaned up."""
        [text] = self._backend.decode_batch([list(token_ids)], skip_special_tokens=False)  # it lets go of the GIL
        return text  # type: ignore[no-any-return]  # tokenizers has no types

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes | None]:
        """The bytes each id stands for, those of control tokens included; None for an id without a token."""
        return list(map(self._pieces.__getitem__, token_ids))

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any],
    ) -> str:
        """The conversation as text. Whatever the template raises passes."""
        text: str = self._loaded.apply_chat_template(
            list(messages),
            tools=list(tools) if tools else None,
            chat_template=self._chat_template,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **template_kwargs,
        )
        return text

    def _encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Any]:
        characters = sum(map(len, texts))
        if characters > self._max_characters:
            raise Reject(
                413,
                "text_too_long",
                f"{characters} characters are to be encoded, at most {self._max_characters} may be"
                " (plugins.hf_tokenizer.max_characters)",
            )
        try:
            encodings: list[Any] = self._backend.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        except TypeError as error:  # what the binding says of half a surrogate pair, which JSON can carry
            raise ValueError(f"a text is no Unicode text: {error}") from error
        return encodings

    def _ends(self, text: str, token_ids: list[int], encoding: Any) -> list[int]:
        added = encoding.special_tokens_mask
        pieces = [
            b"" if is_added else self._pieces[token_id] or b""
            for token_id, is_added in zip(token_ids, added, strict=True)
        ]
        encoded = text.encode("utf-8", "surrogatepass")
        if b"".join(pieces) == encoded:
            return list(accumulate(map(len, pieces)))
        own = [offsets for offsets, is_added in zip(encoding.offsets, added, strict=True) if not is_added]
        found = iter(character_ends(text, own))
        ends = [0 if is_added else next(found) for is_added in added]
        return byte_ends(text, list(accumulate(ends, max)))


def character_ends(text: str, offsets: Sequence[tuple[int, int]]) -> list[int]:
    """The ends of tokens that were told with start and end, in characters.

    A character that no token tells (a combining mark that the normaliser joined to the letter before it) belongs to the
    token before it, unless it is a space, which some tokenizers leave out of what they tell of the token behind it.
    """
    ends = []
    start_behind, following = len(text), len(text)  # the start of the token behind, and the next start that is greater
    for start, end in reversed(offsets):
        if start_behind > start:
            following = start_behind
        start_behind = start
        untold = takewhile(lambda character: not character.isspace(), text[end:following])
        ends.append(end + sum(1 for _ in untold))
    return ends[::-1]


def byte_ends(text: str, character_ends: Sequence[int]) -> list[int]:
    """Offsets in bytes of the UTF-8 text for offsets in characters that never decrease; the last one is the text's end.

    What a tokenizer drops at the end (spaces that it strips) goes with the last token.
    """
    ends, at, size = [], 0, 0
    for end in [*character_ends[:-1], len(text)] if character_ends else []:
        size += len(text[at:end].encode("utf-8", "surrogatepass"))
        at = end
        ends.append(size)
    return ends


def load(path: str, *, chat_template: str | None, max_characters: int) -> HfTokenizer:
    """Reads a tokenizer: seconds of work, for a thread. Raises ValueError that says what to do."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would miss PyTorch, which nobody needs here
    from transformers import AutoTokenizer

    try:
        try:
            loaded = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except OSError:
            if not HUB_NAME.match(path):
                raise
            loaded = AutoTokenizer.from_pretrained(path)  # not in the cache: ask the hub
    except Exception as error:  # a library's own: whatever it raises, the tokenizer is not there
        told = " ".join(str(error).split())[:300]
        hint = "name a local directory, or let this machine reach the hub" if HUB_NAME.match(path) else "see its files"
        raise ValueError(f"the tokenizer {path!r} cannot be read ({hint}): {type(error).__name__}: {told}") from error
    if not loaded.is_fast:
        raise ValueError(f"the tokenizer {path!r} has no tokenizer.json and no fast form: convert it first")
    return HfTokenizer(loaded, chat_template=chat_template, max_characters=max_characters)
