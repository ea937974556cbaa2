"""One HTTP/1.1 connection to a worker, and the answers that come over it, on httptools and asyncio transports.

A connection carries one exchange at a time and is used again only when the last one ended clean: the answer whole,
the request written whole, nothing unasked behind it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import select
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import httptools

from router_core.errors import WorkerFault, WorkerLost, WorkerProtocolError
from router_core.headers import RawHeaders, end_to_end
from router_core.upstream.interface import Outgoing

HIGH_WATER_BYTES = 256 * 1024
"""Unread bytes of an answer above which its worker is not read any more."""
MAX_FIELDS = 1024
MAX_HEAD_BYTES = 1 << 20
"""Bytes within which an answer's head must be whole, interim ones included (more where one field may be longer)."""


class Address:
    """A worker's base URL taken apart once."""

    __slots__ = ("base_url", "host", "host_line", "is_literal", "port", "prefix")

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        address, slash, prefix = base_url.removeprefix("http://").partition("/")
        self.prefix = (slash + prefix).encode()
        self.host_line = b"\r\nhost: " + address.encode() + b"\r\n"
        host, colon, port = address.rpartition(":")
        if not colon or address.endswith("]"):
            host, port = address, "80"
        self.host, self.port = host.strip("[]"), int(port)
        self.is_literal = _is_ip_address(self.host)


class Connection(asyncio.Protocol):
    """One connection to a worker; ``_answer`` is the exchange that it carries, if it does."""

    def __init__(
        self,
        address: Address,
        loop: asyncio.AbstractEventLoop,
        max_field_bytes: int,
        on_release: Callable[[Connection], None],
    ) -> None:
        self.address = address
        self.loop = loop
        self._on_release = on_release
        self.max_field_bytes = max_field_bytes
        self.transport: Any = None
        self.is_lost = False
        self.idle_since = 0.0
        self.can_write = asyncio.Event()
        self.can_write.set()
        self._poll = select.poll()
        self._answer: H1Answer | None = None

    async def exchange(self, request: Outgoing) -> H1Answer:
        """Writes a request and waits for the head of its answer. Raises WorkerLost, WorkerProtocolError."""
        answer = self._answer = H1Answer(self, request.method)
        address, is_chunked = self.address, request.length is None
        parts = [request.method.encode(), b" ", address.prefix, request.target, b" HTTP/1.1", address.host_line]
        for name, value in request.headers:
            parts += (name, b": ", value, b"\r\n")
        if request.body is not None:
            parts += (b"content-length: %d\r\n\r\n" % len(request.body), request.body)
        elif request.stream is None:
            parts.append(b"\r\n")
        elif request.length is None:
            parts.append(b"transfer-encoding: chunked\r\n\r\n")
        else:
            parts.append(b"content-length: %d\r\n\r\n" % request.length)
        self.transport.write(b"".join(parts))
        if request.stream is not None:
            answer.upload_beside(request.stream, is_chunked)
        await answer.wait_for_head()
        return answer

    def is_fresh(self) -> bool:
        """Whether an idle connection is open, and silent: an end, or bytes that nobody asked for, spoil it."""
        return not self.is_lost and not self.transport.is_closing() and not self._poll.poll(0)

    def release(self) -> None:
        """The exchange ended clean: the connection waits for the next one."""
        self._answer = None
        self.idle_since = self.loop.time()
        self._on_release(self)

    def drop(self) -> None:
        """Closes it at once, whatever is under way."""
        self._answer = None
        self.transport.abort()

    # ------------------------------------------------------------------------------------------------ asyncio.Protocol
    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.transport.abort()  # nobody asked
        else:
            self._answer.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self.can_write.set()
        if self._answer is not None:
            if error is not None and not self._answer.has_head:
                self._read_rest(self._answer)
            self._answer.lose(error)

    def _read_rest(self, answer: H1Answer) -> None:
        """A write that failed may have hidden an answer: a worker that reads no further often says why first."""
        try:
            while rest := os.read(self.transport.get_extra_info("socket").fileno(), HIGH_WATER_BYTES):
                answer.feed(rest)
        except OSError:
            pass

    def pause_writing(self) -> None:
        self.can_write.clear()

    def resume_writing(self) -> None:
        self.can_write.set()


class H1Answer:
    """The answer of one exchange: `Incoming`, and what httptools' parser calls."""

    __slots__ = (
        "_buffered",
        "_connection",
        "_ends_by_close",
        "_error",
        "_fields",
        "_has_body",
        "_head_bytes",
        "_is_clean",
        "_is_over",
        "_is_paused",
        "_is_whole",
        "_parser",
        "_pieces",
        "_upload",
        "_waiter",
        "has_head",
        "headers",
        "status",
    )

    def __init__(self, connection: Connection, method: str) -> None:
        self.status = 0
        self.headers: RawHeaders = []
        self._connection = connection
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._has_body = method != "HEAD"
        self._fields: RawHeaders = []
        self._pieces: deque[bytes] = deque()
        self._buffered = 0
        self.has_head = False
        self._head_bytes = 0
        self._is_whole = False
        self._is_clean = False
        self._is_over = False
        self._is_paused = False
        self._ends_by_close = False
        self._error: WorkerFault | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._upload: asyncio.Task[None] | None = None

    # ----------------------------------------------------------------------------------------------------- the request
    def upload_beside(self, stream: AsyncIterator[bytes], is_chunked: bool) -> None:
        """Writes the body while the answer is read, so that an early answer is seen."""
        self._upload = self._connection.loop.create_task(self._send(stream, is_chunked), name="upload")

    async def _send(self, stream: AsyncIterator[bytes], is_chunked: bool) -> None:
        connection = self._connection
        async for piece in stream:
            if connection.is_lost:
                return
            if piece:
                connection.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
            if not connection.can_write.is_set():
                await connection.can_write.wait()
        if is_chunked and not connection.is_lost:
            connection.transport.write(b"0\r\n\r\n")

    # ------------------------------------------------------------------------------------------------------ the answer
    async def wait_for_head(self) -> None:
        """Waits for the final head; an upload that fails ends the wait."""
        if self._upload is not None:
            self._upload.add_done_callback(self._uploaded)
        while not self.has_head:
            if self._error is not None:
                raise self._error
            if self._upload is not None and self._upload.done() and (error := _failure(self._upload)) is not None:
                raise error
            await self._wait()

    def _uploaded(self, upload: asyncio.Task[None]) -> None:
        if _failure(upload) is not None:
            self._wake()

    async def read(self) -> bytes:
        """What has come of the body since the last call, ``b""`` once it is whole."""
        while not self._pieces:
            if self._is_whole:
                self.close()
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        chunk = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._buffered = 0
        if self._is_paused:
            self._is_paused = False
            self._connection.transport.resume_reading()
        return chunk

    def close(self) -> None:
        """Gives the connection up; it goes back to its pool if everything about this exchange was clean."""
        if self._is_over:
            return
        self._is_over = True
        self._parser = None
        is_sent = self._upload is None or (self._upload.done() and _failure(self._upload) is None)
        if not is_sent and self._upload is not None:
            self._upload.cancel()
        if self._is_whole and self._is_clean and is_sent and not self._pieces and not self._connection.is_lost:
            self._connection.release()
        else:
            self._connection.drop()

    async def _wait(self) -> None:
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---------------------------------------------------------------------------------------------- from the connection
    def feed(self, data: bytes) -> None:
        """Takes in what came; more than can be kept stops the reading of the worker."""
        parser = self._parser
        if parser is None:
            return
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("switched protocols unasked")
        except httptools.HttpParserError as error:
            self._is_clean = False
            if not self._is_whole:
                is_ours = isinstance(error, httptools.HttpParserCallbackError)
                self._fail(f"not HTTP: {error.__context__ if is_ours else error}")
        if not self.has_head and self._error is None:
            self._head_bytes += len(data)
            if self._head_bytes > max(MAX_HEAD_BYTES, 2 * self._connection.max_field_bytes):
                self._fail(f"no head within {self._head_bytes} bytes")
        if self._buffered > HIGH_WATER_BYTES and not self._is_paused:
            self._is_paused = True
            self._connection.transport.pause_reading()
        self._wake()

    def _fail(self, what: str) -> None:
        self._error = WorkerProtocolError(f"{self._connection.address.base_url}: {what}")
        self._connection.transport.abort()

    def lose(self, error: Exception | None) -> None:
        """The connection is gone: the end of a body that ends so, else a loss."""
        if not self._is_whole and self._error is None:
            if self.has_head and self._ends_by_close and error is None:
                self._is_whole = True
            else:
                what = str(error) if error is not None else "the worker closed the connection"
                place = "in the middle of the answer" if self.has_head else "before the answer"
                self._error = WorkerLost(f"{self._connection.address.base_url}: {what} {place}", request_sent=True)
        self._wake()

    # ------------------------------------------------------------------------------------------------ httptools' calls
    def on_message_begin(self) -> None:
        if self._is_whole:
            self._is_clean = False  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_whole:
            return
        limit = self._connection.max_field_bytes
        if len(name) + len(value) > limit or len(self._fields) >= MAX_FIELDS:
            raise ValueError(f"a header field above {limit} bytes, or more than {MAX_FIELDS} fields")
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if self._is_whole or parser is None:
            return
        status = parser.get_status_code()
        if status < 200:
            self._fields.clear()
            return
        if status > 599:
            raise ValueError(f"a status of {status}")
        names = {name.lower() for name, _ in self._fields}
        self.status = status
        self.headers = end_to_end(self._fields)
        self._ends_by_close = b"content-length" not in names and b"transfer-encoding" not in names
        self._is_clean = parser.should_keep_alive()
        self.has_head = True
        self._is_whole = not self._has_body

    def on_body(self, piece: bytes) -> None:
        if not self._is_whole:
            self._pieces.append(piece)
            self._buffered += len(piece)

    def on_message_complete(self) -> None:
        self._is_whole = self.has_head


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _failure(task: asyncio.Task[None]) -> BaseException | None:
    return None if not task.done() or task.cancelled() else task.exception()
