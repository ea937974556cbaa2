"""uvicorn's HTTP protocol, mended where it would lose a request's body, and telling more of its client."""

from __future__ import annotations

import asyncio
import select
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from router_core.asgi_inbound import DEPARTURE, HAS_LEFT, Departure
from router_core.errors import Reject
from router_core.headers import one_date_and_server
from router_core.outbox import Outbox, OutboxTransport
from router_core.types import Answer
from router_core.upload import FULL_S

MAX_HEAD_BYTES = 1 << 20
"""Bytes within which a request's head, or its trailer, must be whole."""
_LEFT = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class Flow:
    """Whether a client is read, and reads: uvicorn's FlowControl, compiled."""

    __slots__ = ("_has_room", "_transport", "read_paused", "write_paused")

    def __init__(self, transport: OutboxTransport) -> None:
        self._transport = transport
        self.read_paused = False
        self.write_paused = False
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def drain(self) -> None:
        """Until it reads on."""
        await self._has_room.wait()

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._has_room.clear()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._has_room.set()


class Protocol(HttpToolsProtocol):
    """A request that asks for an upgrade passes as plain HTTP, with its body.

    httptools takes what follows such a head for another protocol: it says that the message is complete, and would read
    the body as the next request. (Java's HttpClient asks every server for h2c, on its POSTs too.) So the body is read
    by a new parser, which is told its framing first.
    """

    # uvicorn's, named here so that compiled they are slots, and found at once
    parser: Any
    loop: Any
    transport: Any
    flow: Any
    server: Any
    client: Any
    scheme: Any
    headers: Any
    url: Any
    expect_100_continue: Any
    cycle: Any
    pipeline: Any
    connections: Any
    tasks: Any
    server_state: Any
    timeout_keep_alive: Any
    timeout_keep_alive_task: Any

    _moves_keep_alive = True
    """Whether its timer is set anew for every request, as uvicorn does."""
    _framing: bytes | None = None
    """Of the body that follows the head of a request for an upgrade."""
    _is_amid_head = False
    _head_bytes = 0
    _serving: Any = None
    """The newest cycle that was begun; while others wait behind it, ``cycle`` is the last of those."""
    _watch: asyncio.TimerHandle | None = None

    def __init__(self, outbox: Outbox, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._outbox = outbox

    def connection_made(self, transport: Any) -> None:
        """uvicorn's, but that it would ask the system for addresses which the transport knows."""
        self.connections.add(self)
        self.transport = OutboxTransport(transport, self._outbox, self.loop)
        self.flow = Flow(self.transport)
        self.server, self.client = _address(transport, "sockname"), _address(transport, "peername")
        self.scheme = "https" if transport.get_extra_info("sslcontext") else "http"

    def data_received(self, data: bytes) -> None:
        if self._moves_keep_alive:
            self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._read_body_anew()
            except httptools.HttpParserError as error:
                self.send_400_response(str(error))
                return
            else:
                if self._is_amid_head or self.headers:
                    self._count_head(len(data))
                elif self._head_bytes:
                    self._head_bytes = 0
                return

    def _count_head(self, came: int) -> None:
        self._head_bytes += came
        if self._head_bytes > MAX_HEAD_BYTES:
            self.send_400_response(f"no head or trailer within {MAX_HEAD_BYTES} bytes")

    def send_400_response(self, msg: str) -> None:
        """Our envelope; where another answer is on its way, nothing may stand between its bytes."""
        cycle = self.cycle
        if not self.pipeline and (cycle is None or not cycle.response_started or cycle.response_complete):
            answer = Answer.error(Reject(400, "malformed_request", f"the request is not HTTP/1.1: {msg}"))
            fields = [*one_date_and_server(answer.headers.raw), (b"connection", b"close")]
            head = [b"HTTP/1.1 400 Bad Request\r\n", *(b"%b: %b\r\n" % field for field in fields), b"\r\n"]
            self.transport.write(b"".join([*head, answer.ready_body or b""]))
        self.transport.close()

    def _read_body_anew(self) -> None:
        calls = _Unprimed(self)
        self.parser = httptools.HttpRequestParser(calls)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        if self._framing is not None:
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + self._framing + b"\r\n\r\n")
            self._framing = None
        calls.is_primed = True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_amid_head = True
        scope: Any = self.scope
        scope[HAS_LEFT], scope[DEPARTURE] = self.has_left, Departure()  # for the core alone

    def on_headers_complete(self) -> None:
        self._is_amid_head = False
        super().on_headers_complete()
        self._note_framing()
        self.headers = []  # what comes now is a trailer, and no part of the head
        if self.pipeline:
            self._watch_client()

    def _note_framing(self) -> None:
        """Remembers the framing of a body that httptools will not read."""
        if self.parser.should_upgrade():
            if any(name == b"transfer-encoding" for name, _ in self.headers):
                self._framing = b"transfer-encoding: chunked"
            else:
                for name, value in self.headers:
                    if name == b"content-length" and value.strip(b"0 \t"):
                        self._framing = b"content-length: " + value  # as the parser has taken it

    def on_message_complete(self) -> None:
        if self._framing is None:
            super().on_message_complete()

    def answered(self) -> None:
        """A cycle of our own has written its answer."""
        self.on_response_complete()

    # ----------------------------------------------------------------------------------- requests that wait behind one
    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._serving = cycle
        super()._start_asgi_task(cycle, app)

    def _watch_client(self) -> None:
        """While requests wait behind one, nothing is read, and no end is seen."""
        if self._watch is None:
            self._watch = self.loop.call_later(FULL_S, self._look_whether_left)

    def _look_whether_left(self) -> None:
        self._watch = None
        if self.pipeline and not self.transport.is_closing():
            if self.has_left():
                self.transport.abort()
            else:
                self._watch_client()

    def connection_lost(self, exc: Exception | None) -> None:
        """Lets go of its last request, which holds on to it: the collector seldom comes by (`garbage.THRESHOLDS`)."""
        super().connection_lost(exc)
        self.pipeline.clear()
        if self._serving is not None:
            self._lose(self._serving)
        self._serving = self.cycle = self.scope = None  # type: ignore[assignment]  # nobody asks for them any more

    def _lose(self, cycle: Any) -> None:
        """The client of the request that is served is gone."""
        if not cycle.response_complete:
            cycle.disconnected = True
            departure: Departure | None = cycle.scope.get(DEPARTURE)
            if departure is not None:
                departure.tell()
        cycle.message_event.set()

    def is_between_requests(self) -> bool:
        """Whether what comes next begins a request, and all answers have been written."""
        cycle = self.cycle
        if self._is_amid_head or (cycle is not None and not (cycle.response_complete and self._is_received(cycle))):
            return False
        return cast("OutboxTransport", self.transport).get_write_buffer_size() == 0

    def _is_received(self, cycle: Any) -> bool:
        return not cycle.more_body

    def has_left(self) -> bool:
        """Whether the client has closed its side, even behind bytes that nobody reads."""
        if self.transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), _LEFT)
        return bool(poll.poll(0))


def _address(transport: Any, which: str) -> tuple[str, int] | None:
    """Host and port, where it has them: a client may be gone, a socket have a path."""
    address = transport.get_extra_info(which)
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None


class _Unprimed:
    """A parser's calls, but for those of a head that the protocol knows already."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self.is_primed = False
        self.on_body = protocol.on_body

    def on_message_begin(self) -> None:
        if self.is_primed:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self.is_primed:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.is_primed:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.is_primed:
            self._protocol.on_headers_complete()

    def on_message_complete(self) -> None:
        self._protocol.on_message_complete()
