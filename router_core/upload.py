"""A request's body on its way in: whoever reads the client puts it here, every attempt takes it from here."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from router_core.deadline import stopped
from router_core.errors import Reject, RouterError

STREAM_BYTES = 256 * 1024
"""Unsent bytes of a streamed upload above which the client is not read: back-pressure."""
FULL_S = 1.0
"""Seconds after which a full buffer is looked at: has the client left unseen, is a held body to be refused?"""


class Upload:
    """`BodySource` of one exchange. Its client is read on while nobody takes the body, up to a bound."""

    __slots__ = (
        "_arrived",
        "_buffered",
        "_error",
        "_is_collecting",
        "_is_complete",
        "_is_streaming",
        "_max_body_bytes",
        "_max_held_bytes",
        "_pieces",
        "_received",
        "_whole",
        "is_declared",
        "length",
        "on_room",
    )

    def __init__(self, *, length: int | None, is_declared: bool, max_body_bytes: int, max_held_bytes: int) -> None:
        self.length = length
        """As the client declared it, in bytes; None for chunks."""
        self.is_declared = is_declared
        self._max_body_bytes = max_body_bytes
        self._max_held_bytes = max_held_bytes
        self._pieces: deque[bytes] | None = None
        """None until there are some: most bodies come whole."""
        self._buffered = 0
        self._received = 0
        self._is_complete = not is_declared
        self._is_streaming = False
        self._is_collecting = False
        self._error: RouterError | None = None
        self._whole: bytes | None = None if is_declared else b""
        self._arrived: asyncio.Event | None = None
        self.on_room: Callable[[], None] | None = None
        """Called when it is no longer full."""

    # ------------------------------------------------------------------------------------------------- whoever puts in
    def check_length(self) -> None:
        """Raises Reject (413) for a body that is declared too long."""
        if self.length is not None and self.length > self._max_body_bytes:
            raise self._too_long()

    def put(self, piece: bytes) -> None:
        """One more piece. Raises Reject (413) above the bound."""
        self._received += len(piece)
        if self._received > self._max_body_bytes:
            raise self._too_long()
        if piece and not self._is_complete:
            self._keep(piece)
            self._buffered += len(piece)
            self._tell()

    def put_whole(self, body: bytes) -> None:
        """All of it, where nothing was put in before. Raises Reject (413) above the bound."""
        self._received = self._buffered = len(body)
        if self._received > self._max_body_bytes:
            raise self._too_long()
        self._whole = body
        self.finish()

    def _keep(self, piece: bytes) -> None:
        if self._pieces is None:
            self._pieces = deque()
        self._pieces.append(piece)

    def finish(self) -> None:
        """That was all."""
        self._is_complete = True
        self._tell()

    def fail(self, error: RouterError) -> None:
        """The rest will not come."""
        self._error = error
        self._tell()

    @property
    def is_complete(self) -> bool:
        """Whether every byte has come in."""
        return self._is_complete

    @property
    def error(self) -> RouterError | None:
        """Why the rest will not come."""
        return self._error

    @property
    def is_full(self) -> bool:
        """Whether the client is not to be read now."""
        return self._buffered >= self._bound()

    def overdue(self) -> Reject | None:
        """What to tell a client whose body has been held, full, for `FULL_S`: None where it is on its way out."""
        if self._is_streaming:
            return None
        limit = f"{self._max_held_bytes} bytes (router.max_held_body_bytes)"
        return Reject(413, "held_body_too_large", f"a request that waits may hold {limit}", "content-length")

    def _bound(self) -> int:
        if self._is_collecting:
            return self._max_body_bytes + 1
        return STREAM_BYTES if self._is_streaming else self._max_held_bytes

    def _too_long(self) -> Reject:
        limit = f"{self._max_body_bytes} bytes (router.max_body_bytes)"
        return Reject(413, "body_too_large", f"the body is longer than {limit}", "content-length")

    def _tell(self) -> None:
        if self._arrived is not None:
            self._arrived.set()

    # ------------------------------------------------------------------------------------------------- whoever takes it
    @property
    def whole(self) -> bytes | None:
        """The body, once every byte of it is in memory and none was streamed away."""
        if self._whole is None and self._is_complete and not self._is_streaming:
            pieces, self._pieces = self._pieces, None
            self._whole = b"".join(pieces or ())
        return self._whole

    @property
    def is_streamed(self) -> bool:
        return self._is_streaming

    async def read_all(self) -> bytes:
        """The body whole, kept for later calls. Raises ClientLeft, Reject."""
        if self._is_streaming:
            raise RuntimeError("the body was streamed to a worker: it cannot be read any more")
        self._is_collecting = True
        if (body := self.whole) is None:
            self._tell_of_room()
            with stopped():
                body = await self._wait_for_all()
        return body

    async def _wait_for_all(self) -> bytes:
        while (body := self.whole) is None:
            await self._more()
        return body

    def stream(self) -> AsyncIterator[bytes]:
        """The body piece by piece, for one attempt; nothing is kept. Raises ClientLeft, Reject."""
        return _Stream(self)

    def begin_stream(self) -> None:
        """From now on what comes is not kept."""
        if self._is_streaming:
            raise RuntimeError("the body was streamed to a worker: it cannot be sent a second time")
        self._is_streaming = True
        if self._whole:  # it has come since the stream was made, and somebody asked for all of it
            self._keep(self._whole)
            self._whole = None

    async def take(self) -> bytes:
        """The next piece of a streamed body, ``b""`` after the last one."""
        while not self._pieces:
            if self._is_complete:
                return b""
            self._tell_of_room()
            await self._more()
        piece = self._pieces.popleft()
        self._buffered -= len(piece)
        self._tell_of_room()
        return piece

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        if self._arrived is None:
            self._arrived = asyncio.Event()
        self._arrived.clear()
        await self._arrived.wait()

    def _tell_of_room(self) -> None:
        if self.on_room is not None and not self.is_full:
            self.on_room()


class _Stream:
    """The pieces of a body as they come."""

    __slots__ = ("_has_begun", "_upload")

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._has_begun = False

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> bytes:
        if not self._has_begun:
            self._upload.begin_stream()
            self._has_begun = True
        piece = await self._upload.take()
        if not piece:
            raise StopAsyncIteration
        return piece
