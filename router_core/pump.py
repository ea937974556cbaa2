"""The one reader of a client's side of an exchange: takes in the upload, then waits for the client to leave."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from router_core.deadline import stopped
from router_core.errors import ClientLeft, Reject, RouterError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

STREAM_BYTES = 256 * 1024
"""Unsent bytes of a streamed upload above which the client is not read: back-pressure."""
FULL_S = 1.0
"""Seconds after which a full buffer is looked at: has the client left unseen, is a held body to be refused?"""


class Pump:
    """Reads ``receive`` for one exchange; the body's source for every attempt of it.

    It reads on while nobody takes the body, because a server stops reading a socket whose bytes pile up, and would
    not see the client leave. ``interrupt`` is told ClientLeft, or the Reject of a body that is too long.
    """

    def __init__(
        self,
        receive: Receive,
        interrupt: Callable[[RouterError], None],
        *,
        length: int | None,
        is_declared: bool,
        max_body_bytes: int,
        max_held_bytes: int,
        has_left: Callable[[], bool] | None = None,
    ) -> None:
        """``has_left`` sees a client that left behind bytes which are not read."""
        self._receive = receive
        self._interrupt = interrupt
        self.length = length
        self.is_declared = is_declared
        self._max_body_bytes = max_body_bytes
        self._max_held_bytes = max_held_bytes
        self._has_left = has_left
        self._pieces: deque[bytes] = deque()
        self._buffered = 0
        self._received = 0
        self._is_complete = not is_declared
        self._is_streaming = False
        self._is_collecting = False
        self._error: RouterError | None = None
        self._whole: bytes | None = None if is_declared else b""
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()

    # ------------------------------------------------------------------------------------------------ the reading side
    async def begin(self) -> None:
        """Takes in the first piece, which is the whole of most bodies. Raises ClientLeft, Reject."""
        if self.length is not None and self.length > self._max_body_bytes:
            raise self._too_long()
        if not await self._next():
            raise self._error or ClientLeft("the client closed its connection")

    async def run(self) -> None:
        """Reads on until the client leaves; runs as the exchange's one background task."""
        while await self._next():
            pass

    async def _next(self) -> bool:
        try:
            if not self._is_complete:
                await self._make_room()
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft("the client closed its connection")
            self._put(message.get("body", b""))
            if not message.get("more_body", False):
                self._is_complete = True
                self._arrived.set()
        except RouterError as error:
            self._error = error
            self._arrived.set()
            self._interrupt(error)
            return False
        return True

    def _put(self, piece: bytes) -> None:
        self._received += len(piece)
        if self._received > self._max_body_bytes:
            raise self._too_long()
        if piece and not self._is_complete:
            self._pieces.append(piece)
            self._buffered += len(piece)
            self._arrived.set()

    def _too_long(self) -> Reject:
        limit = f"{self._max_body_bytes} bytes (router.max_body_bytes)"
        return Reject(413, "body_too_large", f"the body is longer than {limit}", "content-length")

    async def _make_room(self) -> None:
        """Waits while the buffer is full; raises Reject for a held body above its bound."""
        while self._buffered >= self._bound():
            self._taken.clear()
            try:
                async with asyncio.timeout(FULL_S):
                    await self._taken.wait()
            except TimeoutError:
                if self._has_left is not None and self._has_left():
                    raise ClientLeft("the client closed its connection") from None
                if self._is_streaming:
                    continue
                raise Reject(
                    413,
                    "held_body_too_large",
                    f"a request that waits may hold {self._max_held_bytes} bytes (router.max_held_body_bytes)",
                    "content-length",
                ) from None

    def _bound(self) -> int:
        if self._is_collecting:
            return self._max_body_bytes + 1
        return STREAM_BYTES if self._is_streaming else self._max_held_bytes

    def detach(self) -> None:
        """The exchange is over: nobody is to be told any more."""
        self._has_left = None
        self._interrupt = _nobody

    # ------------------------------------------------------------------------------------------------ the taking side
    @property
    def whole(self) -> bytes | None:
        """The body, once every byte of it is in memory and none was streamed away."""
        if self._whole is None and self._is_complete and not self._is_streaming:
            self._whole = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces.clear()
        return self._whole

    @property
    def is_streamed(self) -> bool:
        return self._is_streaming

    async def read_all(self) -> bytes:
        """The body whole, kept for later calls. Raises ClientLeft, Reject."""
        if self._is_streaming:
            raise RuntimeError("the body was streamed to a worker: it cannot be read any more")
        self._is_collecting = True
        self._taken.set()
        if (body := self.whole) is None:
            with stopped():
                body = await self._wait_for_all()
        return body

    async def _wait_for_all(self) -> bytes:
        while (body := self.whole) is None:
            if self._error is not None:
                raise self._error
            self._arrived.clear()
            await self._arrived.wait()
        return body

    async def stream(self) -> AsyncIterator[bytes]:
        """The body piece by piece, for one attempt; nothing is kept. Raises ClientLeft, Reject."""
        if self._is_streaming:
            raise RuntimeError("the body was streamed to a worker: it cannot be sent a second time")
        self._is_streaming = True
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._buffered -= len(piece)
                self._taken.set()
                yield piece
            if self._is_complete:
                return
            if self._error is not None:
                raise self._error
            self._arrived.clear()
            self._taken.set()
            await self._arrived.wait()


def _nobody(error: RouterError) -> None:
    """The client of an exchange that is over may leave."""
