"""Finds the values of some keys in JSON or SSE bytes without parsing them, and cuts them out.

Why a search for bytes is exact: a quote inside a JSON string is written ``\\"``, so ``"a_key"`` with a first quote
behind no backslash is a whole string, and a string followed by ``:`` is a key. Text that a model or a user wrote may
contain the key in any form and is never taken. Only a key spelt with escapes is not seen.

A value that is a string, an object or an array is handed on piece by piece as it comes (memoryviews of the chunks,
nothing is copied), and a placeholder stands in for it in the rest: the string ``"0"`` for the first, ``"1"`` for the
second. A null, a number or a boolean stays where it is. Every real string being cut, a string found under the key in
the parsed rest is a placeholder.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

STRUCTURE = re.compile(rb'["{}\[\]]')
NOT_WHITESPACE = re.compile(rb"[^ \t\r\n]")
SCALAR_END = re.compile(rb"[,}\] \t\r\n]")


class Sink(Protocol):
    """Takes one value as it comes."""

    def write(self, piece: memoryview) -> None:
        """The next bytes of the value: of a string what is between its quotes, of an object or array all of it."""


class Pieces:
    """A sink that keeps references to what it is given; nothing is copied until ``joined``."""

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []

    def write(self, piece: memoryview) -> None:
        self.pieces.append(piece)

    def joined(self) -> bytes:
        return b"".join(self.pieces)


def keep_pieces(is_string: bool) -> Sink:
    """The sink of a scanner that is told no other."""
    return Pieces()


class Nowhere:
    """A sink that keeps nothing."""

    def write(self, piece: memoryview) -> None:
        pass


_NOWHERE = Nowhere()


def keep_nothing(is_string: bool) -> Sink:
    """The ``open_sink`` of a scanner whose values are not wanted."""
    return _NOWHERE


class FoundValue:
    """One value of the key: bytes ``[start, stop)`` of the stream, without the quotes of a string.

    ``stop`` is None until its end came; a value that stays so was cut off.
    """

    __slots__ = ("is_string", "sink", "start", "stop")

    def __init__(self, start: int, sink: Sink, *, is_string: bool) -> None:
        self.start = start
        self.stop: int | None = None
        self.sink = sink
        self.is_string = is_string


class ValueScanner:
    """Reads a body chunk by chunk, cut anywhere, and finds each value of ``keys``.

    ``open_sink(is_string)`` makes the sink of each value. The body without the values is kept in ``rest`` as pieces
    that refer to the chunks, until ``drain`` takes them. With a ``replacement`` those very bytes stand in for a whole
    value instead of a placeholder; with ``takes_scalars`` also for a null, a number or a boolean.
    """

    def __init__(
        self,
        *keys: bytes,
        open_sink: Callable[[bool], Sink] = keep_pieces,
        replacement: bytes | None = None,
        takes_scalars: bool = False,
    ) -> None:
        self.values: list[FoundValue] = []
        self.rest: list[bytes | memoryview] = []
        self._open_sink = open_sink
        self._replacement = replacement
        self._takes_scalars = takes_scalars
        self._needles = [b'"' + key + b'"' for key in keys]
        self._reach = max(map(len, self._needles))
        # a function of the class: a bound method would be a cycle and keep all chunks until the next collection
        self._step: Callable[[ValueScanner, bytes, memoryview, int], int] = ValueScanner._seek
        self._offset = 0  # in the stream, of the chunk at hand
        self._kept_from = 0  # in the chunk at hand: what follows belongs to the rest
        self._tail = b""  # what the last chunk ended with: a needle, or a backslash before it, may stand there
        self._ends_escaped = False  # the last chunk ended, within a string, with a backslash that escapes
        self._depth = 0
        self._is_quoted = False  # in a string inside an object or array

    @property
    def is_inside(self) -> bool:
        """Whether the body stands (or ended) within a value."""
        return bool(self.values) and self.values[-1].stop is None

    def feed(self, chunk: bytes) -> None:
        """Read on."""
        view = memoryview(chunk)
        at, self._kept_from = 0, 0
        while at < len(chunk):
            at = self._step(self, chunk, view, at)
        if not self.is_inside:
            self._keep(view[self._kept_from :])
        self._offset += len(chunk)

    def rest_bytes(self) -> bytes:
        """The body without the values, to be parsed."""
        return b"".join(self.rest)

    def drain(self) -> list[bytes | memoryview]:
        """The pieces of the rest since the last call; they are not kept any longer."""
        pieces, self.rest = self.rest, []
        return pieces

    def _keep(self, piece: bytes | memoryview) -> None:
        if len(piece):
            self.rest.append(piece)

    def _seek(self, chunk: bytes, view: memoryview, at: int) -> int:
        if at == 0 and self._tail:
            size = len(self._tail)
            window = self._tail + chunk[: self._reach - 1]
            end = self._find(window, lambda needle: max(0, size - len(needle) + 1))
            if end >= 0:
                return self._found_needle(end - size)
        start = 1 if at == 0 and self._tail.endswith(b"\\") else at
        end = self._find(chunk, lambda needle: start)
        if end >= 0:
            return self._found_needle(end)
        self._tail = (self._tail + chunk[max(at, len(chunk) - self._reach) :])[-self._reach :]
        return len(chunk)

    def _find(self, searched: bytes, start_of: Callable[[bytes], int]) -> int:
        """The end of the first needle behind no backslash; -1 where there is none."""
        first = -1
        for needle in self._needles:
            found = searched.find(needle, start_of(needle))
            while found > 0 and searched[found - 1] == 0x5C:
                found = searched.find(needle, found + 1)
            if found >= 0 and (first < 0 or found + len(needle) < first):
                first = found + len(needle)
        return first

    def _found_needle(self, end: int) -> int:
        self._tail = b""
        self._step = ValueScanner._expect_colon
        return end

    def _expect_colon(self, chunk: bytes, view: memoryview, at: int) -> int:
        found = NOT_WHITESPACE.search(chunk, at)
        if found is None:
            return len(chunk)
        self._step = ValueScanner._expect_value if found[0] == b":" else ValueScanner._seek
        return found.end() if found[0] == b":" else found.start()

    def _expect_value(self, chunk: bytes, view: memoryview, at: int) -> int:
        found = NOT_WHITESPACE.search(chunk, at)
        if found is None:
            return len(chunk)
        is_scalar = found[0] not in b'"{['
        if is_scalar and not self._takes_scalars:
            self._step = ValueScanner._seek
            return found.start()
        is_string = found[0] == b'"'
        start = found.end() if is_string else found.start()
        if self._replacement is None:
            self._keep(view[self._kept_from : start])
            self._keep(b"%d" % len(self.values) if is_string else b'"%d"' % len(self.values))
        else:
            self._keep(view[self._kept_from : found.start()])
            self._keep(self._replacement)
        self.values.append(FoundValue(self._offset + start, self._open_sink(is_string), is_string=is_string))
        self._depth, self._is_quoted, self._ends_escaped = 0, False, False
        if is_scalar:
            self._step = ValueScanner._read_scalar
        else:
            self._step = ValueScanner._read_string if is_string else ValueScanner._read_nested
        return start

    def _read_scalar(self, chunk: bytes, view: memoryview, at: int) -> int:
        found = SCALAR_END.search(chunk, at)
        end = len(chunk) if found is None else found.start()
        self.values[-1].sink.write(view[at:end])
        if found is not None:
            self._close(end)
        return end

    def _read_string(self, chunk: bytes, view: memoryview, at: int) -> int:
        quote = self._find_quote(chunk, at)
        end = len(chunk) if quote < 0 else quote
        self.values[-1].sink.write(view[at:end])
        if quote >= 0:
            self._close(quote)
        return end

    def _read_nested(self, chunk: bytes, view: memoryview, at: int) -> int:
        end = self._find_end_of_nested(chunk, at)
        self.values[-1].sink.write(view[at : end if end >= 0 else len(chunk)])
        if end < 0:
            return len(chunk)
        self._close(end)
        return end

    def _close(self, end: int) -> None:
        self.values[-1].stop = self._offset + end
        self._kept_from = end
        if self._replacement is not None and self.values[-1].is_string:
            self._kept_from += 1
        self._step = ValueScanner._seek

    def _find_end_of_nested(self, chunk: bytes, at: int) -> int:
        while True:
            if self._is_quoted:
                quote = self._find_quote(chunk, at)
                if quote < 0:
                    return -1
                self._is_quoted = False
                at = quote + 1
            found = STRUCTURE.search(chunk, at)
            if found is None:
                return -1
            at = found.end()
            if found[0] == b'"':
                self._is_quoted = True
            else:
                self._depth += 1 if found[0] in b"{[" else -1
                if self._depth == 0:
                    return at

    def _find_quote(self, chunk: bytes, at: int) -> int:
        """The next quote that ends the string at hand; -1 when it is not in this chunk."""
        quote = chunk.find(b'"', at)
        while quote >= 0 and self._is_escaped(chunk, at, quote):
            quote = chunk.find(b'"', quote + 1)
        self._ends_escaped = quote < 0 and self._is_escaped(chunk, at, len(chunk))
        return quote

    def _is_escaped(self, chunk: bytes, start: int, at: int) -> bool:
        before = at
        while before > start and chunk[before - 1] == 0x5C:
            before -= 1
        is_odd = (at - before) % 2 == 1
        return is_odd != (before == 0 and self._ends_escaped)
