"""Text to ids and back, for one byte-level BPE in Hugging Face's ``tokenizer.json`` format."""

import codecs
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

ASSETS = Path(__file__).parent / "assets"
"""The shipped tokenizer: tokenizer.json, tokenizer_config.json, chat_template.jinja and the corpus it is trained on."""


class Tokenizer:
    """Encodes, decodes and knows which ids end a turn.

    ``directory`` holds ``tokenizer.json`` and ``tokenizer_config.json``; what is not byte-level is a ValueError, since
    streamed text is made by joining the bytes of the ids.
    """

    def __init__(self, directory: Path = ASSETS) -> None:
        from tokenizers import Tokenizer as HfTokenizer

        self.directory = directory
        written = (directory / "tokenizer.json").read_text(encoding="utf-8")
        self._tokenizer = HfTokenizer.from_str(written)
        decoder = json.loads(written).get("decoder") or {}
        if decoder.get("type") != "ByteLevel":
            raise ValueError(
                f"{directory / 'tokenizer.json'}: the decoder is {decoder.get('type')}; only ByteLevel works here"
            )
        config: dict[str, Any] = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        eos = config["eos_token"]
        self.eos_token: str = eos if isinstance(eos, str) else eos["content"]

    @cached_property
    def vocabulary_size(self) -> int:
        """One more than the highest id."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def eos_id(self) -> int:
        """The id that ends a turn."""
        eos_id = self.id_of(self.eos_token)
        if eos_id is None:
            raise ValueError(f"{self.directory / 'tokenizer.json'}: no token {self.eos_token}, which is the eos_token")
        return eos_id

    def id_of(self, token: str) -> int | None:
        """Return the id of one token as it is written in the vocabulary."""
        token_id: int | None = self._tokenizer.token_to_id(token)
        return token_id

    def name_of(self, token_id: int) -> str | None:
        """Return the token of an id as it is written in the vocabulary."""
        name: str | None = self._tokenizer.id_to_token(token_id)
        return name

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``; added tokens such as ``<|im_end|>`` written in it become their ids."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ``token_ids``; bytes that are no UTF-8 become U+FFFD."""
        return self.token_bytes(token_ids, skip_special_tokens).decode("utf-8", errors="replace")

    def token_bytes(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> bytes:
        """Return the bytes that ``token_ids`` stand for; an id without a token stands for none."""
        hidden = self._special_ids if skip_special_tokens else frozenset[int]()
        table = self._bytes_of
        return b"".join(table.get(token_id, b"") for token_id in token_ids if token_id not in hidden)

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @cached_property
    def _bytes_of(self) -> dict[int, bytes]:
        added = self._tokenizer.get_added_tokens_decoder()
        table = {token_id: token.content.encode() for token_id, token in added.items()}
        byte_of = _byte_of_character()
        for token, token_id in self._tokenizer.get_vocab(with_added_tokens=False).items():
            table.setdefault(token_id, bytes(byte_of[character] for character in token))
        return table


class TextStream:
    """The text of a growing list of ids; a character whose bytes are not all there yet is held back."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token_ids: Sequence[int], is_last: bool = False) -> str:
        """Return the text that ``token_ids`` add; with ``is_last`` nothing is held back any longer."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_ids, self._skip_special_tokens), is_last)


def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's table of printable characters that stand for the 256 bytes in a byte-level vocabulary."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}
