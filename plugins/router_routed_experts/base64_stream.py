"""Base64 that comes in pieces cut anywhere."""

from __future__ import annotations

import binascii
from collections.abc import Iterator

import pybase64

from router_routed_experts.reasons import Reason, RowsError

PIECE_CHARACTERS = 1 << 19
"""Decoded at once: what stays in the processor's cache is decoded six times as fast as a body of 64 MiB."""

GROUP_CHARACTERS = 32
"""Decoded together: 24 bytes, so that integers of any size come whole and need not be put together again."""

ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
ESCAPED_SLASH = b"\\/"
"""Some JSON writers escape the slash, of the characters of base64 the only one that has such a form."""


class Base64Stream:
    """Decodes a base64 text piece by piece; keeps less than a group of characters between two of them."""

    def __init__(self) -> None:
        self._kept = b""
        self._is_padded = False

    def decode(self, text: memoryview) -> Iterator[bytes]:
        """The bytes that the next characters complete; raises ``RowsError`` for anything that is not base64."""
        lead = -len(self._kept) % GROUP_CHARACTERS
        if lead:
            yield self._taken(text[:lead])
        for start in range(lead, len(text), PIECE_CHARACTERS):
            yield self._taken(text[start : start + PIECE_CHARACTERS])

    def finish(self) -> bytes:
        """The last bytes; raises ``RowsError`` unless the text ended with a whole group of four characters."""
        kept, self._kept = self._kept.replace(ESCAPED_SLASH, b"/"), b""
        if kept and self._is_padded:
            raise RowsError(Reason.NOT_BASE64, "characters behind the padding")
        try:
            return pybase64.b64decode(kept, validate=True)
        except binascii.Error as error:
            raise _not_base64(kept) from error

    def _taken(self, piece: memoryview) -> bytes:
        try:
            return self._decoded(self._kept + bytes(piece) if self._kept else piece)
        except binascii.Error:
            return self._decoded_unescaped(self._kept + bytes(piece))

    def _decoded(self, text: bytes | memoryview) -> bytes:
        if self._is_padded and len(text):
            raise RowsError(Reason.NOT_BASE64, "characters behind the padding")
        stop = len(text) // GROUP_CHARACTERS * GROUP_CHARACTERS
        decoded = pybase64.b64decode(text[:stop], validate=True)
        self._kept = bytes(text[stop:])
        self._is_padded = len(decoded) % 3 != 0
        return decoded

    def _decoded_unescaped(self, text: bytes) -> bytes:
        cut = b"\\" if text.endswith(b"\\") else b""
        try:
            decoded = self._decoded(text.removesuffix(cut).replace(ESCAPED_SLASH, b"/"))
        except binascii.Error as error:
            raise _not_base64(text) from error
        self._kept += cut
        return decoded


def _not_base64(text: bytes) -> RowsError:
    odd = text.replace(ESCAPED_SLASH, b"").translate(None, ALPHABET)[:1].decode("latin-1")
    return RowsError(Reason.NOT_BASE64, f"it holds {odd!r}" if odd else "no whole groups of four, or padding within")
