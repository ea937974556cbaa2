"""A request as a scripted worker received it."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from router_core.testing.http1 import BodyReader, Framing, Head, MalformedHttpError, RawPairs

if TYPE_CHECKING:
    from router_core.testing.connection import Connection


class ScriptedRequest(Head):
    """One request in the bytes that came: ``raw`` (its head), ``headers`` (pairs in order), ``target``, ``body``."""

    def __init__(self, raw: bytes, connection: "Connection", on_read: Callable[[], None] = lambda: None) -> None:
        super().__init__(raw)
        parts = self.first_line.split(b" ")
        if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
            raise MalformedHttpError(f"a request that begins with {self.first_line[:80]!r}")
        self.method = parts[0].decode("latin-1")
        self.target = parts[1]
        self.version = parts[2]
        self.connection = connection
        self.body = b""
        """What of the body has been read."""
        self.arrived_at = time.monotonic()
        """When the head had come (time.monotonic)."""
        self.peer_left = False
        """Whether the other side had left before this request's handler ended."""
        self.is_handled = False
        """Whether its handler has ended."""
        self._reader = BodyReader(connection.wire, self.framing, self.length if self.framing == "length" else 0)
        self._on_read = on_read
        self._awaits_continue = (self.get("expect") or "").lower() == "100-continue"

    @property
    def path(self) -> str:
        """The target without its query, still percent-encoded."""
        return self.target.partition(b"?")[0].decode("latin-1")

    @property
    def clean(self) -> bool | None:
        """Whether the body ended as its framing says; None while it has not been read to its end."""
        return self._reader.clean

    @property
    def body_framing(self) -> Framing:
        return self._reader.framing

    @property
    def chunk_sizes(self) -> list[int]:
        return self._reader.chunk_sizes

    @property
    def trailers(self) -> RawPairs:
        return self._reader.trailers

    @property
    def connection_number(self) -> int:
        return self.connection.number

    async def read_piece(self) -> bytes:
        """The next piece of the body, ``b""`` at its end. Sends ``100 Continue`` first, if that is awaited."""
        if self._awaits_continue and not self._reader.is_done:
            self._awaits_continue = False
            await self.connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        piece = await self._reader.read_piece()
        if self._reader.is_done:
            self._on_read()
        return piece

    async def read_body(self, *, keep: bool = True) -> bytes:
        """The whole body. Cut short it is what came, and ``clean`` is False. ``keep=False`` throws it away."""
        pieces: list[bytes] = []
        try:
            while piece := await self.read_piece():
                if keep:
                    pieces.append(piece)
        finally:
            self.body += b"".join(pieces)
        return self.body

    def json(self) -> Any:  # JSON has no narrower type
        return orjson.loads(self.body)

    def __repr__(self) -> str:
        target = self.target.decode("latin-1")
        return f"<{self.method} {target}, {len(self.body)} bytes, connection {self.connection_number}>"
