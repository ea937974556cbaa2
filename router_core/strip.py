"""Takes members out of JSON or SSE bytes as they pass: what a client did not ask for, whatever the cuts."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from router_core.scan import ValueScanner, keep_nothing

SPACE = b" \t\r\n"
GONE = b"null"
"""Stands in for a value whose member is taken out; recognised as this very object."""
MAY_BEGIN = re.compile(rb'[,{][ \t\r\n]*(?:"[^"\\\x00-\x1f]{0,256}(?:"[ \t\r\n]*:?[ \t\r\n]*)?)?')
MAX_HELD_BYTES = 512


class MemberStripper:
    """Feeds on chunks and gives them back without the members of some keys, wherever in the JSON they stand.

    >>> stripper = MemberStripper(b"b", b"d")
    >>> stripper.feed(b'{"a":1, "b":[2'), stripper.feed(b'],"c":3,"d":null}')
    (b'{"a":1', b',"c":3}')

    A chunk without any of them passes as it is. The end of a chunk is held back while it may be the beginning of a
    member (a comma, a key); `rest` gives what is held at the end of the body.
    """

    def __init__(self, *keys: bytes) -> None:
        self._scanner = ValueScanner(*keys, open_sink=keep_nothing, replacement=GONE, takes_scalars=True)
        self._needles = [b'"' + key + b'"' for key in keys]
        self._held = b""
        self._drops_comma = False

    def feed(self, chunk: bytes) -> bytes:
        """What may pass on; perhaps nothing."""
        self._scanner.feed(chunk)
        pieces = self._scanner.drain()
        if not self._scanner.is_inside:
            self._scanner.values.clear()
        if len(pieces) == 1 and len(pieces[0]) == len(chunk) and not (self._held or self._drops_comma):
            return self._hold_back(chunk)
        passed, text = [], self._held
        for piece in pieces:
            if piece is GONE:
                before = self._without_member(text)
                passed.append(before[:-1])
                text = before[-1:]  # what comes before the next member decides which comma goes with that one
            else:
                text += self._behind_comma(bytes(piece))
        return b"".join([*passed, self._hold_back(text)])

    def rest(self) -> bytes:
        """What is still held."""
        held, self._held = self._held, b""
        return held

    def _without_member(self, text: bytes) -> bytes:
        """``text`` ends with a member's key and colon: they go, and the comma before them or behind the value."""
        before = text[: max(text.rfind(needle) for needle in self._needles)].rstrip(SPACE)
        if before.endswith(b","):
            return before[:-1]
        self._drops_comma = True
        return before

    def _behind_comma(self, piece: bytes) -> bytes:
        """The first member of an object is gone: the comma that followed it goes too."""
        if self._drops_comma and (rest := piece.lstrip(SPACE)):
            self._drops_comma = False
            return rest.removeprefix(b",")
        return b"" if self._drops_comma else piece

    def _hold_back(self, text: bytes) -> bytes:
        start = max(text.rfind(b",", -MAX_HELD_BYTES), text.rfind(b"{", -MAX_HELD_BYTES))
        self._held = text[start:] if start >= 0 and MAY_BEGIN.fullmatch(text, start) else b""
        return text[: len(text) - len(self._held)] if self._held else text  # compiled, a slice of all is a copy


def without_members(chunks: AsyncIterator[bytes], *keys: bytes) -> AsyncIterator[bytes]:
    """The chunks of an answer without the members of ``keys``."""
    return _Stripped(chunks, MemberStripper(*keys))


class _Stripped:
    """The chunks as a stripper passes them, and what it holds at their end."""

    __slots__ = ("_chunks", "_stripper")

    def __init__(self, chunks: AsyncIterator[bytes], stripper: MemberStripper) -> None:
        self._chunks = chunks
        self._stripper = stripper

    def __aiter__(self) -> _Stripped:
        return self

    async def __anext__(self) -> bytes:
        async for chunk in self._chunks:
            if passed := self._stripper.feed(chunk):
                return passed
        if rest := self._stripper.rest():
            return rest
        raise StopAsyncIteration

    async def aclose(self) -> None:
        close = getattr(self._chunks, "aclose", None)
        if close is not None:
            await close()
