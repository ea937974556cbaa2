"""One request on the fast front: its body as it is parsed, and its answer on the wire."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from router_core.errors import ClientLeft, Reject, RouterError
from router_core.headers import RawHeaders, add_lines
from router_core.inbound import Inbound, Room
from router_core.outbox import OutboxTransport
from router_core.protocol import Flow, Protocol
from router_core.request_task import RequestTask
from router_core.upload import FULL_S, Upload

log = logging.getLogger("router_core")

_STATUS_LINES: Final = {status: line.removesuffix(b"\r\n") for status, line in STATUS_LINE.items()}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
EARLY_BYTES: Final = 64 * 1024
"""Bytes of a body above which a client is not read until its exchange begins."""
COPIED_BYTES: Final = 64 * 1024
"""A body or chunk below this is written in one piece with its head or frame."""


class _NoEvent:
    def set(self) -> None:
        """uvicorn tells its own cycles so that something happened."""


class FastCycle(Inbound):
    """`Inbound` of one request: what its connection parses goes in, what the core answers goes out."""

    __slots__ = (
        "_connection",
        "_early",
        "_early_bytes",
        "_expects_continue",
        "_flow",
        "_has_come",
        "_interrupt",
        "_is_chunked",
        "_is_received",
        "_timer",
        "_transport",
        "_upload",
        "disconnected",
        "keep_alive",
        "response_complete",
        "response_started",
        "session_id",
        "task",
    )

    message_event: ClassVar[_NoEvent] = _NoEvent()

    def __init__(self, connection: Protocol, path: bytes, query: bytes, session_id: str | None) -> None:
        parser = connection.parser
        self.method = cast("bytes", parser.get_method()).decode("ascii")
        self.path = path
        self.query = query
        self.session_id = session_id
        self.headers = connection.headers
        self.scheme = connection.scheme or "http"
        self.client_host = connection.client[0] if connection.client else None
        may_stay = parser.should_keep_alive()
        self.http_version = _http_version(parser, connection.headers, may_stay=may_stay)
        self.keep_alive = may_stay and self.http_version != "1.0"
        self.disconnected = self.response_started = self.response_complete = False
        self._connection = connection
        self._transport: OutboxTransport = connection.transport
        self._flow: Flow = connection.flow
        self._expects_continue = connection.expect_100_continue
        self._early: list[bytes] | None = None
        """What came before anybody opened the body."""
        self._early_bytes = 0
        self._is_received = False
        self._upload: Upload | None = None
        self._interrupt: Callable[[RouterError], None] = _nobody
        self._has_come: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_chunked = False
        self.task: RequestTask | None = None
        """What serves it, once it is its turn."""

    # -------------------------------------------------------------------------------------------------------- the body
    def open(self, upload: Upload, interrupt: Callable[[RouterError], None]) -> Awaitable[None] | None:
        upload.check_length()
        if self.disconnected:
            raise ClientLeft("the client closed its connection")
        self._upload, self._interrupt = upload, interrupt
        if self._expects_continue:
            self._transport.write(CONTINUE)
        early, self._early = self._early, None
        if early is not None and len(early) == 1 and self._is_received and not upload.is_complete:
            upload.put_whole(early[0])
        else:
            for piece in early or ():
                upload.put(piece)
            if self._is_received:
                upload.finish()
            elif not early and not upload.is_complete:
                self._has_come = self._connection.loop.create_future()
        if not self._is_received:
            upload.on_room = self._go_on_reading
            if upload.is_full:
                self._stop_reading()
                return self._has_come
        self._go_on_reading()
        return self._has_come

    def take_in(self, piece: bytes) -> None:
        """A piece of the body came."""
        if self.response_complete:
            return
        upload = self._upload
        if upload is None:
            if self._early is None:
                self._early = []
            self._early.append(piece)
            self._early_bytes += len(piece)
            if self._early_bytes > EARLY_BYTES:
                self._flow.pause_reading()
            return
        try:
            upload.put(piece)
        except Reject as refusal:
            self._give_up(upload, refusal)
            return
        self._tell_who_waits()
        if upload.is_full:
            self._stop_reading()

    def take_end(self) -> None:
        """The body is whole."""
        self._is_received = True
        if self._upload is not None:
            self._upload.finish()
            self._tell_who_waits()

    def _tell_who_waits(self) -> None:
        if self._has_come is not None and not self._has_come.done():
            self._has_come.set_result(None)

    def _stop_reading(self) -> None:
        self._flow.pause_reading()
        if self._timer is None:
            self._timer = self._connection.loop.call_later(FULL_S, self._look_at_full)

    def _go_on_reading(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flow.read_paused and not self._connection.pipeline:
            self._flow.resume_reading()

    def _look_at_full(self) -> None:
        upload, self._timer = self._upload, None
        if upload is None or self.response_complete:
            return
        refusal: RouterError | None = upload.overdue()
        if self._connection.has_left():
            refusal = ClientLeft("the client closed its connection")
        if refusal is not None:
            self._give_up(upload, refusal)
        else:
            self._timer = self._connection.loop.call_later(FULL_S, self._look_at_full)

    def _give_up(self, upload: Upload, why: RouterError) -> None:
        upload.fail(why)
        self._interrupt(why)

    def lose(self) -> None:
        """The connection is gone."""
        if self.response_complete:
            return
        self.disconnected = True
        if self._upload is not None:
            self._give_up(self._upload, ClientLeft("the client closed its connection"))

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def close(self) -> None:
        self._interrupt = _nobody
        if self._upload is not None:
            self._upload.on_room = None
            self._upload = None  # else they hold each other, and the connection the body
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------------------------------------------------- the answer
    def whole(self, status: int, fields: RawHeaders, body: bytes) -> Room:
        lines = self._head(status, fields)
        is_copied = len(body) < COPIED_BYTES
        lines.append(b"")
        lines.append(body if is_copied else b"")
        if self.disconnected:
            return None
        if is_copied:
            self._transport.pass_on(b"\r\n".join(lines))
        else:
            self._transport.write(b"\r\n".join(lines))
            self._transport.write(body)
        self._finish()
        return None

    def begin(self, status: int, fields: RawHeaders, *, is_chunked: bool) -> Room:
        lines = self._head(status, fields)
        self._is_chunked = is_chunked
        if is_chunked:
            lines.append(b"transfer-encoding: chunked")
        lines.append(b"")
        lines.append(b"")
        if not self.disconnected:
            self._transport.write(b"\r\n".join(lines))
        return None

    def write(self, chunk: bytes) -> Room:
        if not self.disconnected:
            self._send(chunk)
        return self._flow.drain() if self._flow.write_paused else None

    def write_now(self, chunk: bytes) -> bool:
        if self._flow.write_paused:
            return False
        if not self.disconnected:
            self._send(chunk)
        return True

    def _send(self, chunk: bytes) -> None:
        if not self._is_chunked:
            self._transport.pass_on(chunk)
        elif len(chunk) < COPIED_BYTES:
            self._transport.pass_on(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        else:
            self._transport.writelines((b"%x\r\n" % len(chunk), chunk, b"\r\n"))

    def end(self) -> Room:
        if not self.disconnected:
            if self._is_chunked:
                self._transport.write(b"0\r\n\r\n")
            self._finish()
        return None

    def break_off(self) -> None:
        self._transport.close()

    def _head(self, status: int, fields: RawHeaders) -> list[bytes]:
        """Its lines, to be joined by line ends, with two empty ones behind them."""
        lines = [_STATUS_LINES[status]]
        add_lines(lines, fields)
        if not self.keep_alive:
            lines.append(b"connection: close")
        self.response_started = True
        return lines

    def _finish(self) -> None:
        self.response_complete = True
        if not self.keep_alive:
            self._transport.close()
        self._connection.answered()

    def served(self, task: RequestTask) -> None:
        """Its exchange has ended, whatever came of it; without a whole answer the connection does, too."""
        self.task = None
        self._connection.tasks.discard(task)
        if not self.response_complete:
            self._transport.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an exchange failed: %r", error, exc_info=error)


def _http_version(parser: Any, fields: RawHeaders, *, may_stay: bool) -> str:
    """Whoever may stay without a word about it speaks 1.1; to ask the parser costs more than to look.

    The parser listens to Proxy-Connection as to Connection.
    """
    if may_stay:
        for name, _ in fields:
            if name == b"connection" or name == b"proxy-connection":  # a tuple costs more
                break
        else:
            return "1.1"
    return str(parser.get_http_version())


def _nobody(error: RouterError) -> None:
    """The client of an exchange that is over may leave."""
