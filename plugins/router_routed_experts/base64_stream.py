"""Base64 that comes in pieces cut anywhere."""

from __future__ import annotations

import binascii
from collections.abc import Iterator

import pybase64

from router_routed_experts.reasons import Reason, RowsError

PIECE_CHARACTERS = 1 << 18
"""Decoded at once: what stays in the processor's cache is decoded six times as fast as a body of 64 MiB."""

ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="


class Base64Stream:
    """Decodes a base64 text piece by piece; keeps at most three characters between two of them."""

    def __init__(self) -> None:
        self._kept = b""
        self._is_padded = False

    def decode(self, text: memoryview) -> Iterator[bytes]:
        """The bytes that the next characters complete; raises ``RowsError`` for anything that is not base64."""
        for start in range(0, len(text), PIECE_CHARACTERS):
            piece = text[start : start + PIECE_CHARACTERS]
            try:
                yield from self._decoded(piece)
            except binascii.Error:
                yield from self._decoded_unescaped(piece)

    def finish(self) -> None:
        """Raise ``RowsError`` unless the text ended with a whole group of four characters."""
        if self._kept:
            raise RowsError(Reason.NOT_BASE64, f"{len(self._kept)} characters too many for groups of four")

    def _decoded(self, piece: memoryview) -> list[bytes]:
        if self._is_padded:
            raise RowsError(Reason.NOT_BASE64, "characters behind the padding")
        lead = -len(self._kept) % 4
        head = self._kept + bytes(piece[:lead])
        if len(head) % 4:  # still no whole group
            self._kept = head
            return []
        stop = lead + (len(piece) - lead) // 4 * 4
        decoded = [pybase64.b64decode(part, validate=True) for part in (head, piece[lead:stop]) if len(part)]
        if len(decoded) == 2 and len(decoded[0]) % 3:
            raise RowsError(Reason.NOT_BASE64, "characters behind the padding")
        self._kept = bytes(piece[stop:])
        self._is_padded = bool(decoded) and len(decoded[-1]) % 3 != 0
        return decoded

    def _decoded_unescaped(self, piece: memoryview) -> list[bytes]:
        """Some JSON writers escape the slash, of the characters of base64 the only one that can be."""
        text = self._kept + bytes(piece)
        self._kept = b""
        try:
            return self._decoded(memoryview(text.replace(b"\\", b"")))
        except binascii.Error as error:
            odd = text.translate(None, ALPHABET + b"\\")[:1].decode("latin-1")
            raise RowsError(Reason.NOT_BASE64, f"it holds {odd!r}" if odd else "padding in the middle") from error
