"""The bytes that each id stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

BYTE_PIECE = re.compile(r"^<0x([0-9A-F]{2})>$")


class Pieces(dict[int, bytes | None]):
    """Id -> its bytes, made when first asked for; None for an id without a token.

    ``added`` are tokens written as they are. The others are spelt in GPT-2's printable stand-ins for bytes where
    ``is_byte_level``, else with U+2581 for a space and ``<0xE4>`` for a byte.
    """

    def __init__(self, name_of: Callable[[int], str | None], added: Mapping[int, str], *, is_byte_level: bool) -> None:
        super().__init__({token_id: text.encode() for token_id, text in added.items()})
        self._name_of = name_of
        self._is_byte_level = is_byte_level

    def __missing__(self, token_id: int) -> bytes | None:
        name = self._name_of(token_id) if 0 <= token_id < 1 << 32 else None
        if name is None:
            return None  # not kept: any number may be asked for
        self[token_id] = piece = byte_level_piece(name) if self._is_byte_level else plain_piece(name)
        return piece


def byte_level_piece(name: str) -> bytes:
    """Bytes of a token of a byte-level vocabulary; a character that stands for no byte stands for itself."""
    try:
        return bytes([BYTE_OF[character] for character in name])
    except KeyError:
        return name.encode()


def plain_piece(name: str) -> bytes:
    """Bytes of a token of a vocabulary in the way of SentencePiece."""
    byte = BYTE_PIECE.match(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace("\u2581", " ").encode()


def _byte_of_character() -> dict[str, int]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


BYTE_OF = _byte_of_character()
"""GPT-2's table: printable characters stand for themselves, the others are U+0100 and on."""
