"""A request that came by ASGI: the one reader of its client's side, and the messages of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from router_core.deadline import within
from router_core.errors import ClientLeft, RouterError
from router_core.headers import RawHeaders
from router_core.inbound import Inbound
from router_core.upload import FULL_S, Upload

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

HAS_LEFT = "router_core.has_left"
"""Scope key of a function that says whether the client has closed its side, even behind bytes that nobody reads."""
BROKEN = "router_core.broken"
"""Scope key of a `Broken`, put there by the outermost guard."""


DEPARTURE = "router_core.departure"
"""Scope key of a `Departure`, where the server has one."""


class Departure:
    """Where the server's connection says that its client has left, to who would else have to ask all the time."""

    __slots__ = ("has_been", "on_left")

    def __init__(self) -> None:
        self.has_been = False
        self.on_left: Callable[[], None] | None = None

    def tell(self) -> None:
        self.has_been = True
        if self.on_left is not None:
            self.on_left()


class Broken:
    """Says that an answer broke after its head had left, so that no middleware can make a clean end of it."""

    __slots__ = ("is_broken",)

    def __init__(self) -> None:
        self.is_broken = False


class AsgiInbound(Inbound):
    """`Inbound` over an ASGI scope.

    It reads on while nobody takes the body, because a server stops reading a socket whose bytes pile up, and would
    not see the client leave; after the body, where nobody else says that the client has left.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, path: bytes) -> None:
        """``path`` in place of the scope's: they differ for a turn below ``/sessions/{id}/``."""
        self.method: str = scope["method"]
        self.path = path
        self.query: bytes = scope["query_string"]
        self.headers: RawHeaders = scope["headers"]
        self.http_version: str = scope["http_version"]
        self.scheme: str = scope["scheme"]
        client = scope.get("client")
        self.client_host: str | None = client[0] if client else None
        self._scope = scope
        self._receive = receive
        self._send = send
        self._has_left: Callable[[], bool] | None = scope.get(HAS_LEFT)
        self._departure: Departure | None = scope.get(DEPARTURE)
        self._upload: Upload | None = None
        self._interrupt: Callable[[RouterError], None] = _nobody
        self._room: asyncio.Event | None = None
        self._task = asyncio.current_task()
        self._reading: asyncio.Task[None] | None = None

    # --------------------------------------------------------------------------------------------------------- the body
    def open(self, upload: Upload, interrupt: Callable[[RouterError], None]) -> Awaitable[None]:
        self._upload, self._interrupt = upload, interrupt
        return self._open(upload)

    async def _open(self, upload: Upload) -> None:
        upload.check_length()
        if not await self._next(upload):
            raise upload.error or ClientLeft("the client closed its connection")
        departure = self._departure
        if departure is None or not upload.is_complete:
            self._reading = asyncio.get_running_loop().create_task(self._read_on(upload), name="reads a client")
        elif departure.has_been:
            raise ClientLeft("the client closed its connection")
        else:
            departure.on_left = self._leave

    async def _read_on(self, upload: Upload) -> None:
        while await self._next(upload):
            pass

    def _leave(self) -> None:
        error = ClientLeft("the client closed its connection")
        if self._upload is not None:
            self._upload.fail(error)
        self._interrupt(error)

    async def _next(self, upload: Upload) -> bool:
        try:
            if not upload.is_complete:
                await self._make_room(upload)
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft("the client closed its connection")
            upload.put(message.get("body", b""))
            if not message.get("more_body", False):
                upload.finish()
        except RouterError as error:
            upload.fail(error)
            self._interrupt(error)
            return False
        return True

    async def _make_room(self, upload: Upload) -> None:
        """Waits while the buffer is full. Raises Reject for a held body above its bound, and ClientLeft."""
        while upload.is_full:
            if self._room is None:
                self._room = asyncio.Event()
                upload.on_room = self._room.set
            self._room.clear()
            try:
                await within(FULL_S, self._room.wait())
            except TimeoutError:
                if self._has_left is not None and self._has_left():
                    raise ClientLeft("the client closed its connection") from None
                if (refusal := upload.overdue()) is not None:
                    raise refusal from None

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        self._has_left = None
        self._interrupt = _nobody
        if self._departure is not None:
            self._departure.on_left = None
            self._departure = None
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None  # it holds on to what holds it

    # ------------------------------------------------------------------------------------------------------- the answer
    async def whole(self, status: int, fields: RawHeaders, body: bytes) -> None:
        try:
            await self._send({"type": "http.response.start", "status": status, "headers": fields})
            await self._send({"type": "http.response.body", "body": body, "more_body": False})
        except OSError as error:
            raise ClientLeft("the client closed its connection") from error

    def begin(self, status: int, fields: RawHeaders, *, is_chunked: bool) -> Awaitable[None]:
        return self._pass({"type": "http.response.start", "status": status, "headers": fields})

    def write(self, chunk: bytes) -> Awaitable[None]:
        return self._pass({"type": "http.response.body", "body": chunk, "more_body": True})

    def write_now(self, chunk: bytes) -> bool:
        return False  # a message is awaited

    def end(self) -> Awaitable[None]:
        return self._pass({"type": "http.response.body", "body": b"", "more_body": False})

    def break_off(self) -> None:
        if isinstance(broken := self._scope.get(BROKEN), Broken):
            broken.is_broken = True

    async def _pass(self, message: MutableMapping[str, Any]) -> None:
        try:
            await self._send(message)
        except OSError as error:
            raise ClientLeft("the client closed its connection") from error


def _nobody(error: RouterError) -> None:
    """The client of an exchange that is over may leave."""
