"""HTTP/1.1 as bytes: heads in raw pairs, bodies with a verdict on their end, and heads built as told."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from router_core.testing.wire import CutShortError, Wire

RawPairs = list[tuple[bytes, bytes]]
"""Header fields as they came or go: order, spelling and repetition kept."""

Fields = Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]
"""Header fields as a test writes them."""

Framing = Literal["none", "length", "chunked", "close"]
"""How a message says where its body ends; ``close`` is by the end of the connection."""


class MalformedHttpError(Exception):
    """What came is not HTTP/1.1."""


def raw_pairs(fields: Fields) -> RawPairs:
    items: Iterable[tuple[str | bytes, str | bytes]] = fields.items() if isinstance(fields, Mapping) else fields
    return [(_raw(name), _raw(value)) for name, value in items]


def build_head(first_line: bytes, pairs: RawPairs) -> bytes:
    return b"\r\n".join([first_line, *(name + b": " + value for name, value in pairs)]) + b"\r\n\r\n"


def encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


class Head:
    """A first line and the fields below it, exactly as received."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.first_line, *lines = raw.removesuffix(b"\r\n\r\n").split(b"\r\n")
        self.headers: RawPairs = []
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon:
                raise MalformedHttpError(f"a header line without a colon: {line[:80]!r}")
            self.headers.append((name, value.strip(b" \t")))

    def get(self, name: str) -> str | None:
        """The first value, or None. Decoded as latin-1, which loses nothing."""
        return next(iter(self.values(name)), None)

    def values(self, name: str) -> list[str]:
        """The values of all fields of this name, in order."""
        wanted = name.lower().encode("latin-1")
        return [value.decode("latin-1") for key, value in self.headers if key.lower() == wanted]

    @property
    def framing(self) -> Framing:
        """What the fields say; ``none`` when they say nothing."""
        if "chunked" in ",".join(self.values("transfer-encoding")).lower():
            return "chunked"
        return "none" if self.get("content-length") is None else "length"

    @property
    def length(self) -> int:
        """The Content-Length; 0 without one."""
        value = self.get("content-length") or "0"
        if not value.isascii() or not value.isdigit():
            raise MalformedHttpError(f"Content-Length {value!r}")
        return int(value)


async def read_head(wire: Wire) -> Head | None:
    """The next head; None when the other side ended before a first byte of it."""
    raw = await wire.read_until(b"\r\n\r\n")
    return Head(raw) if raw else None


class BodyReader:
    """A body piece by piece, and how it ended.

    ``clean``: None until the end is known, then True (ended as its framing says) or False (cut short). A body that ends
    with its connection stays None: nothing tells a whole one from a part.
    """

    def __init__(self, wire: Wire, framing: Framing, length: int = 0) -> None:
        self.framing = framing
        self.clean: bool | None = True if framing == "none" or (framing == "length" and length == 0) else None
        self.chunk_sizes: list[int] = []
        """Sizes of the chunks as sent, without the last, empty one."""
        self.trailers: RawPairs = []
        self.is_done = bool(self.clean)
        self._wire = wire
        self._left = length
        self._chunk_size: int | None = None  # of the chunk being read, kept when a read is cancelled

    async def read_piece(self) -> bytes:
        """The next piece, ``b""`` at the end: one chunk of a chunked body, else whatever came."""
        if self.is_done:
            return b""
        try:
            piece = await (self._read_chunk() if self.framing == "chunked" else self._read_plain())
        except CutShortError as cut:
            self._end(clean=False)
            return cut.partial
        except ConnectionResetError:
            self._end(clean=False)
            return b""
        return piece

    async def read_all(self, on_piece: Callable[[bytes], None] | None = None) -> bytes:
        parts = bytearray()
        while piece := await self.read_piece():
            parts += piece
            if on_piece is not None:
                on_piece(piece)
        return bytes(parts)

    async def _read_plain(self) -> bytes:
        if self.framing == "close":
            piece = await self._wire.read_some()
            if not piece:
                self._end(clean=None)
            return piece
        piece = await self._wire.read_some(min(self._left, 1 << 18))
        self._left -= len(piece)
        if not piece or self._left == 0:
            self._end(clean=self._left == 0)
        return piece

    async def _read_chunk(self) -> bytes:
        if self._chunk_size is None:
            self._chunk_size = await self._read_chunk_size()
            if self._chunk_size:
                self.chunk_sizes.append(self._chunk_size)
        if self._chunk_size == 0:
            await self._read_trailers()
            return b""
        try:
            data = await self._wire.read_exactly(self._chunk_size + 2)
        except CutShortError as cut:
            raise CutShortError(cut.partial[: self._chunk_size]) from cut
        if not data.endswith(b"\r\n"):
            raise MalformedHttpError(f"a chunk of {self._chunk_size} bytes ends with {data[-2:]!r}")
        self._chunk_size = None
        return data[:-2]

    async def _read_chunk_size(self) -> int:
        try:
            line = await self._wire.read_until(b"\r\n")
        except CutShortError as cut:
            raise CutShortError(b"") from cut
        if not line:
            raise CutShortError(b"")
        try:
            return int(line.split(b";")[0].strip(), 16)
        except ValueError as error:
            raise MalformedHttpError(f"a chunk size line {line[:40]!r}") from error

    async def _read_trailers(self) -> None:
        try:
            while (line := await self._wire.read_until(b"\r\n")) != b"\r\n":
                if not line:
                    raise CutShortError(b"")
                name, _, value = line.partition(b":")
                self.trailers.append((name, value.strip()))
        except CutShortError as cut:
            raise CutShortError(b"") from cut
        self._end(clean=True)

    def _end(self, *, clean: bool | None) -> None:
        self.clean = clean
        self.is_done = True


def _raw(text: str | bytes) -> bytes:
    return text.encode("latin-1") if isinstance(text, str) else text
