"""One HTTP/1.1 connection to a worker, and the answers that come over it, on httptools and asyncio transports.

A connection carries one exchange at a time and is used again only when the last one ended clean: the answer whole,
the request written whole, nothing unasked behind it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import select
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import httptools

from router_core.errors import RouterError, WorkerLost, WorkerProtocolError
from router_core.headers import IN_LOWER_CASE, RawHeaders, add_lines, end_to_end
from router_core.outbox import Outbox
from router_core.request_task import RUNNING, RequestTask
from router_core.upstream.interface import Incoming, Outgoing

HIGH_WATER_BYTES: Final = 256 * 1024
"""Unread bytes of an answer above which its worker is not read any more."""
MAX_FIELDS: Final = 1024
MAX_HEAD_BYTES: Final = 1 << 20
"""Bytes within which an answer's head must be whole, interim ones included (more where one field may be longer)."""
COPIED_BYTES: Final = 64 * 1024
"""A body below this goes out in one write with its head; copying a longer one would cost more than a second write."""

KEPT_TARGETS: Final = 32
KEPT_TARGET_BYTES: Final = 128


class Address:
    """A worker's base URL taken apart once."""

    __slots__ = ("_first_lines", "_host_line", "base_url", "host", "is_literal", "port", "prefix")

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        address, slash, prefix = base_url.removeprefix("http://").partition("/")
        self.prefix = (slash + prefix).encode()
        self._host_line = b" HTTP/1.1\r\nhost: " + address.encode()
        self._first_lines: dict[bytes, bytes] = {}
        host, colon, port = address.rpartition(":")
        if not colon or address.endswith("]"):
            host, port = address, "80"
        self.host, self.port = host.strip("[]"), int(port)
        self.is_literal = _is_ip_address(self.host)

    def first_lines(self, method: str, target: bytes) -> bytes:
        """The request line and Host, remembered for the POST of each target: most are the same few."""
        lines = self._first_lines.get(target)
        if lines is None or method != "POST":
            lines = b"%b %b%b%b" % (method.encode(), self.prefix, target, self._host_line)
            if method == "POST" and len(target) <= KEPT_TARGET_BYTES:
                if len(self._first_lines) >= KEPT_TARGETS:
                    self._first_lines.clear()
                self._first_lines[target] = lines
        return lines


class Connection(asyncio.Protocol):
    """One connection to a worker, and what httptools' parser calls; ``_answer`` is of the exchange that it carries."""

    def __init__(
        self,
        address: Address,
        loop: asyncio.AbstractEventLoop,
        outbox: Outbox,
        max_field_bytes: int,
        on_release: Callable[[Connection], None],
    ) -> None:
        self.address = address
        self.loop = loop
        self._outbox = outbox
        self._on_release = on_release
        self._max_field_bytes = max_field_bytes
        self._max_head_bytes = max(MAX_HEAD_BYTES, 2 * max_field_bytes)
        self.transport: Any = None
        self.is_lost = False
        self.idle_since = 0.0
        self.can_write = asyncio.Event()
        self.can_write.set()
        self._poll = select.poll()
        self._answer: H1Answer | None = None
        self._unsent = b""
        """Of a request what is written at once, or at the end of this turn: its head, and its body if that is small."""
        self._on_write: Callable[[], None] | None = None
        self._has_served = False
        self._parser: Any = httptools.HttpResponseParser(self)
        self._fields: RawHeaders = []
        self._head_bytes = 0

    def start(self, request: Outgoing, on_write: Callable[[], None]) -> H1Answer:
        """Writes a request, or its head and then its body beside the reading of the answer.

        ``on_write`` is called right before the first byte is; what it raises is raised by `H1Answer.head`.
        """
        answer = self._answer = H1Answer(self, has_body=request.method != "HEAD")
        self._head_bytes = 0
        address, body, stream = self.address, request.body, request.stream
        lines = [address.first_lines(request.method, request.target)]
        add_lines(lines, request.headers)
        if body is not None:
            lines.append(b"content-length: " + str(len(body)).encode())  # half of what a format costs
        elif stream is not None and request.length is not None:
            lines.append(b"content-length: " + str(request.length).encode())
        elif stream is not None:
            lines.append(b"transfer-encoding: chunked")
        lines.append(b"")
        lines.append(body if body is not None and len(body) < COPIED_BYTES else b"")
        self._unsent = b"\r\n".join(lines)
        self._on_write = on_write
        is_small = (
            stream is None and len(self._unsent) < 2 * COPIED_BYTES and (body is None or len(body) < COPIED_BYTES)
        )
        if is_small and not self._outbox.may_pass(self.loop):
            self._outbox.add(self, self.loop)
            return answer
        self.flush()
        if answer.is_sent:
            if stream is not None:
                answer.upload_beside(stream, is_chunked=request.length is None)
            elif body is not None and len(body) >= COPIED_BYTES:
                self.transport.write(body)
        return answer

    def flush(self) -> None:
        """Writes the request, if nothing has stopped it meanwhile and the connection is as good as it was."""
        unsent, on_write, answer = self._unsent, self._on_write, self._answer
        self._unsent, self._on_write = b"", None
        if answer is None or on_write is None:
            return
        if self._has_served:
            if not self.is_fresh():
                self.drop()
                answer.stay_unsent()
                return
        elif self.transport.is_closing():  # a new one that its worker has closed at once
            answer.lose(None)
            return
        try:
            on_write()
        except BaseException as error:  # noqa: BLE001  # raised where the answer is waited for
            answer.stop(error)
            return
        answer.is_sent = True
        self.transport.write(unsent)

    def is_fresh(self) -> bool:
        """Whether an idle connection is open, and silent: an end, or bytes that nobody asked for, spoil it."""
        return not self.is_lost and not self.transport.is_closing() and not self._poll.poll(0)

    def release(self, answer: H1Answer) -> None:
        """The exchange ended clean: the connection waits for the next one."""
        self._answer = None
        self._has_served = True
        if not answer.has_body:  # the parser cannot know, and still waits for a body
            self._parser = httptools.HttpResponseParser(self)
        self.idle_since = self.loop.time()
        self._on_release(self)

    def drop(self) -> None:
        """Closes it at once, whatever is under way."""
        self._answer = self._on_write = None
        self.transport.abort()

    # ------------------------------------------------------------------------------------------------ asyncio.Protocol
    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        """Takes in what came; more than can be kept stops the reading of the worker."""
        answer = self._answer
        if answer is None or self._on_write is not None:
            self.transport.abort()  # nobody asked, yet
            return
        if not answer.has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(answer, "switched protocols unasked")
        except httptools.HttpParserError as error:
            answer.is_clean = False
            if not answer.is_whole:
                is_ours = isinstance(error, httptools.HttpParserCallbackError)
                self._fail(answer, f"not HTTP: {error.__context__ if is_ours else error}")
        if answer.has_head:
            if self._fields:
                self._fields = []  # of a trailer
            if answer.buffered > HIGH_WATER_BYTES and not answer.is_paused:
                answer.is_paused = True
                self.transport.pause_reading()
        elif self._head_bytes > self._max_head_bytes and answer.error is None:
            self._fail(answer, f"no head within {self._head_bytes} bytes")
        answer.wake()

    def _fail(self, answer: H1Answer, what: str) -> None:
        answer.error = WorkerProtocolError(f"{self.address.base_url}: {what}")
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self.can_write.set()
        answer, is_unsent, self._on_write = self._answer, self._on_write is not None, None
        if answer is not None and is_unsent and self._has_served:
            answer.stay_unsent()
        elif answer is not None:
            if error is not None and not answer.has_head:
                self._read_rest()
            answer.lose(error)
        self._parser = None  # which holds on to this connection

    def _read_rest(self) -> None:
        """A write that failed may have hidden an answer: a worker that reads no further often says why first."""
        try:
            while rest := os.read(self.transport.get_extra_info("socket").fileno(), HIGH_WATER_BYTES):
                self.data_received(rest)
        except OSError:
            pass

    def pause_writing(self) -> None:
        self.can_write.clear()

    def resume_writing(self) -> None:
        self.can_write.set()

    # ------------------------------------------------------------------------------------------------ httptools' calls
    def on_message_begin(self) -> None:
        if self._answer is not None and self._answer.is_whole:
            self._answer.is_clean = False  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((IN_LOWER_CASE.get(name) or name.lower(), value))

    def on_headers_complete(self) -> None:
        answer, fields = self._answer, self._fields
        self._fields = []
        if answer is None or answer.is_whole or (status := self._parser.get_status_code()) < 200:
            return
        if status > 599:
            raise ValueError(f"a status of {status}")
        limit = self._max_field_bytes
        if len(fields) > MAX_FIELDS or (
            self._head_bytes > limit and any(len(name) + len(value) > limit for name, value in fields)
        ):
            raise ValueError(f"a header field above {limit} bytes, or more than {MAX_FIELDS} fields")
        answer.begin(status, fields, may_stay=self._parser.should_keep_alive())

    def on_body(self, piece: bytes) -> None:
        answer = self._answer
        if answer is None:
            return
        if answer.is_whole:
            answer.is_clean = False  # the body of an answer to HEAD: there may be more of it
            return
        answer.pieces.append(piece)
        answer.buffered += len(piece)

    def on_message_complete(self) -> None:
        if self._answer is not None:
            self._answer.is_whole = self._answer.has_head


class H1Answer(Incoming):
    """The answer of one exchange: `Incoming`. Its connection fills it."""

    __slots__ = (
        "_connection",
        "_ends_by_close",
        "_is_over",
        "_is_read",
        "_sleeper",
        "_take_piece",
        "_upload",
        "_waiter",
        "buffered",
        "error",
        "has_body",
        "has_head",
        "is_clean",
        "is_paused",
        "is_sent",
        "is_whole",
        "pieces",
    )

    def __init__(self, connection: Connection, *, has_body: bool) -> None:
        self.status = 0
        self.headers: RawHeaders = []
        self.has_body = has_body
        """False for the answer to HEAD."""
        self.has_head = False
        self.is_whole = False
        self.is_clean = False
        """Whether the connection may carry another exchange afterwards."""
        self.pieces: list[bytes] = []
        self.buffered = 0
        """Bytes of ``pieces``."""
        self.is_paused = False
        """Whether its worker is not read, because of them."""
        self.is_sent = False
        """Whether a byte of the request was written."""
        self.error: BaseException | None = None
        self._connection = connection
        self._ends_by_close = False
        self._is_read = False
        self._is_over = False
        self._take_piece: Callable[[bytes], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sleeper: RequestTask | None = None
        """Whom the waiter wakes without a turn of the loop."""
        self._upload: asyncio.Task[None] | None = None

    # ----------------------------------------------------------------------------------------------------- the request
    def upload_beside(self, stream: AsyncIterator[bytes], *, is_chunked: bool) -> None:
        """Writes the body while the answer is read, so that an early answer is seen."""
        self._upload = self._connection.loop.create_task(self._send(stream, is_chunked), name="upload")
        self._upload.add_done_callback(self._uploaded)

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

    def _uploaded(self, upload: asyncio.Task[None]) -> None:
        if (error := _failure(upload)) is not None:
            if isinstance(error, RouterError):
                error.__traceback__ = None  # the source of the body keeps it, and it would keep the body
            self.wake()

    # ------------------------------------------------------------------------------------------------------ the answer
    def head(self) -> asyncio.Future[None] | None:
        """What to wait for until the final head may be there, or an upload has failed; None: it is, or `is_unsent`.

        Raises WorkerLost, WorkerProtocolError, and what the upload failed with.
        """
        if self.has_head or self.is_unsent:
            return None
        if self.error is not None:
            raise self.error
        if self._upload is not None and self._upload.done() and (error := _failure(self._upload)) is not None:
            raise error
        return self._next()

    @property
    def is_unsent(self) -> bool:
        """Whether the idle connection had ended, and nothing was written to it: that is never sent again."""
        return self._is_over and not self.is_sent and not self.has_head

    async def read(self) -> bytes:
        """What has come of the body since the last call, ``b""`` once it is whole."""
        self._is_read = True
        while not self.pieces:
            if self.is_whole:
                self.close()
                return b""
            if self.error is not None:
                raise self.error
            await self._next()
        return self._take()

    def _next(self) -> asyncio.Future[None]:
        """Is done once something has come."""
        waiter = self._waiter = self._connection.loop.create_future()
        self._sleeper, task = None, RUNNING.task
        if task is not None and task.get_loop() is self._connection.loop:  # else it is that of another thread
            self._sleeper = task
            task.expect(waiter)
        return waiter

    def pass_to(self, take: Callable[[bytes], bool]) -> None:
        self._take_piece = take

    def _is_passed(self, take: Callable[[bytes], bool]) -> bool:
        """Whether what has come is taken at once, and nobody need be woken for it."""
        pieces = self.pieces
        if not pieces or self.is_whole or self.error is not None:
            return False
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        try:
            is_taken = take(piece)
        except Exception as error:  # noqa: BLE001  # raised where the answer is waited for
            self.error = error
            self._empty()  # nobody knows how much of it was taken
            self._connection.drop()  # nor may anything follow it
            return False
        if is_taken:
            self._empty()
        return is_taken

    def take_whole(self) -> bytes | None:
        if not self.is_whole or self._is_read or self.error is not None:
            return None
        body = self._take()
        self._is_read = True
        self.close()
        return body

    def _take(self) -> bytes:
        pieces = self.pieces
        chunk = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._empty()
        return chunk

    def _empty(self) -> None:
        self.pieces = []
        self.buffered = 0
        if self.is_paused:
            self.is_paused = False
            self._connection.transport.resume_reading()

    def close(self) -> None:
        """Gives the connection up; it goes back to its pool if everything about this exchange was clean."""
        self._take_piece = self._sleeper = None  # which hold what holds this answer
        if self._is_over:
            return
        self._is_over = True
        upload, self._upload = self._upload, None  # which holds frames, and they this answer
        is_sent = upload is None or (upload.done() and _failure(upload) is None)
        if not is_sent and upload is not None:
            upload.cancel()
        if self.is_whole and self.is_clean and is_sent and not self.pieces and not self._connection.is_lost:
            self._connection.release(self)
        else:
            self._connection.drop()

    # ---------------------------------------------------------------------------------------------- from the connection
    def begin(self, status: int, fields: RawHeaders, *, may_stay: bool) -> None:
        """The final head is there; ``may_stay``: the worker will keep the connection open."""
        self.status = status
        self.headers = end_to_end(fields)
        self.is_clean = may_stay
        if not may_stay:
            self._ends_by_close = not any(name in (b"content-length", b"transfer-encoding") for name, _ in fields)
        self.has_head = True
        self.is_whole = not self.has_body

    def stay_unsent(self) -> None:
        """The connection had ended before anything was written."""
        self._is_over = True
        self.wake()

    def stop(self, error: BaseException) -> None:
        """The request is not to be written."""
        self.error = error
        self.wake()

    def wake(self) -> None:
        """Something has come."""
        waiter, take = self._waiter, self._take_piece
        if waiter is None or waiter.done():
            return
        if take is None or not self._is_passed(take):
            self._waiter = None
            waiter.set_result(None)
            sleeper, self._sleeper = self._sleeper, None
            if sleeper is not None:
                sleeper.go_on(waiter)

    def lose(self, error: Exception | None) -> None:
        """The connection is gone: the end of a body that ends so, else a loss."""
        if not self.is_whole and self.error is None:
            if self.has_head and self._ends_by_close and error is None:
                self.is_whole = True
            else:
                what = str(error) if error is not None else "the worker closed the connection"
                place = "in the middle of the answer" if self.has_head else "before the answer"
                self.error = WorkerLost(
                    f"{self._connection.address.base_url}: {what} {place}", request_sent=self.is_sent
                )
        self.wake()


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _failure(task: asyncio.Task[None]) -> BaseException | None:
    return None if not task.done() or task.cancelled() else task.exception()
