"""A data client on aiohttp: for TLS, and for comparison.

It writes the request itself and uses aiohttp's connector (pool, DNS, TLS) and response parser. Nothing is
added to the request, nothing is decoded, no redirect is followed, no cookie kept, no environment proxy read.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import http_exceptions
from yarl import URL

from router_core.errors import WorkerLost, WorkerProtocolError, WorkerUnreachable
from router_core.headers import RawHeaders, end_to_end, is_fit_to_send
from router_core.upstream.interface import IDLE_S, Incoming, Outgoing, Upstream

HIGH_WATER_BYTES = 1 << 16
"""Unread bytes of an answer above which its worker is not read (twice this, for aiohttp)."""


@dataclass(frozen=True, slots=True)
class _Address:
    """A worker's base URL taken apart once. ``target`` is what aiohttp's connector connects for."""

    target: aiohttp.ClientRequest
    host: bytes
    prefix: bytes
    is_tls: bool


class AiohttpUpstream(Upstream):
    """`Upstream` on aiohttp, one level below its ClientSession."""

    def __init__(self, *, connect_timeout_s: float, max_field_bytes: int) -> None:
        self._connector: aiohttp.TCPConnector | None = None
        self._timeout = aiohttp.ClientTimeout(connect=connect_timeout_s, sock_connect=connect_timeout_s)
        self._connect_timeout_s = connect_timeout_s
        self._max_field_bytes = max_field_bytes
        self._addresses: dict[str, _Address] = {}

    def _address(self, base_url: str) -> _Address:
        address = self._addresses.get(base_url)
        if address is None:
            url = URL(base_url)
            host, slash, prefix = base_url.split("//", 1)[1].partition("/")
            target = aiohttp.ClientRequest("GET", url, loop=asyncio.get_running_loop())
            address = _Address(target, host.encode(), (slash + prefix).encode(), url.scheme == "https")
            if len(self._addresses) > 10_000:
                self._addresses.clear()
            self._addresses[base_url] = address
        return address

    async def send(self, request: Outgoing, on_write: Callable[[], None]) -> Incoming:
        address = self._address(request.base_url)
        connection = await self._connect(address, request.base_url)
        exchange = _Exchange(connection, request.base_url)
        try:
            protocol = exchange.protocol
            protocol.set_response_params(
                skip_payload=request.method == "HEAD",
                read_until_eof=True,
                auto_decompress=False,
                read_bufsize=HIGH_WATER_BYTES,
                max_line_size=self._max_field_bytes,
                max_field_size=self._max_field_bytes,
                max_headers=1024,
            )
            on_write()
            exchange.write_head(request, address)
            if request.stream is not None:
                exchange.upload(request.stream, chunked=request.length is None)
            await exchange.read_head()
        except BaseException:
            exchange.close()
            raise
        return exchange

    async def _connect(self, address: _Address, base_url: str) -> Any:
        """A connection that is fit for a request: a pooled one that its worker has closed meanwhile is dropped."""
        if self._connector is None:
            self._connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
        try:
            while True:
                connection = await self._connector.connect(address.target, [], self._timeout)
                if not _is_stale(connection, address.is_tls):
                    return connection
                connection.close()
        except TimeoutError as error:
            raise WorkerUnreachable(f"{base_url}: no connection within {self._connect_timeout_s:g} s") from error
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            raise WorkerUnreachable(f"{base_url}: {error.os_error or error}", refused=refused) from error
        except (aiohttp.ClientError, OSError, ssl.SSLError, UnicodeError) as error:
            raise WorkerUnreachable(f"{base_url}: {error!r}") from error

    async def aclose(self) -> None:
        if self._connector is not None:
            await self._connector.close()


class _Exchange(Incoming):
    """One request and answer on one connection."""

    __slots__ = (
        "_base_url",
        "_connection",
        "_ends_by_close",
        "_is_over",
        "_payload",
        "_upload",
        "protocol",
    )

    def __init__(self, connection: Any, base_url: str) -> None:
        self._connection = connection
        self._base_url = base_url
        self.protocol: Any = connection.protocol  # a ResponseHandler, whose answers are not what its stubs say
        self._payload: aiohttp.StreamReader | None = None
        self._upload: asyncio.Task[None] | None = None
        self._ends_by_close = False
        self._is_over = False
        self.status = 0
        self.headers: RawHeaders = []

    def write_head(self, request: Outgoing, address: _Address) -> None:
        lines = [
            b"%s %s%s HTTP/1.1\r\nhost: %s\r\n"
            % (request.method.encode(), address.prefix, request.target, address.host)
        ]
        lines += [b"%s: %s\r\n" % pair for pair in request.headers]
        if request.body is not None:
            lines.append(b"content-length: %d\r\n\r\n" % len(request.body))
            lines.append(request.body)
        elif request.stream is not None:
            length = request.length
            framing = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
            lines.append(framing + b"\r\n\r\n")
        else:
            lines.append(b"\r\n")
        self._write(b"".join(lines))

    def _write(self, data: bytes) -> None:
        transport = self.protocol.transport
        if transport is None or transport.is_closing():
            raise WorkerLost(f"{self._base_url}: the connection was closed", request_sent=True)
        transport.write(data)

    def upload(self, stream: AsyncIterator[bytes], *, chunked: bool) -> None:
        """Writes the body beside the reading of the answer, so that an early answer is seen."""
        self._upload = asyncio.get_running_loop().create_task(self._upload_all(stream, chunked), name="upload")

    async def _upload_all(self, stream: AsyncIterator[bytes], chunked: bool) -> None:
        async for piece in stream:
            if piece:
                self._write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                await self.protocol._drain_helper()
        if chunked:
            self._write(b"0\r\n\r\n")

    async def read_head(self) -> None:
        """Waits for the final head; interim 1xx ones are dropped. An upload that fails ends the wait."""
        while True:
            message, payload = await self._next_message()
            if message.code >= 200:
                break
            if message.code == 101:
                raise WorkerProtocolError(f"{self._base_url}: switched protocols unasked")
        self.status = message.code
        self.headers = end_to_end([(name.lower(), value) for name, value in message.raw_headers])
        if message.code > 599 or not is_fit_to_send(self.headers):
            raise WorkerProtocolError(f"{self._base_url}: a status or a header field that no server may send")
        self._ends_by_close = not message.chunked and "content-length" not in message.headers
        self._payload = payload
        if (closed := self.protocol.closed) is not None:
            closed.add_done_callback(self._break_payload)

    def _break_payload(self, closed: asyncio.Future[None]) -> None:
        """aiohttp closes the connection of a body that is not HTTP, and does not tell the body's reader."""
        closed.exception()
        error = self.protocol.exception()
        if isinstance(error, http_exceptions.HttpProcessingError) and self._payload is not None:
            self._payload.set_exception(error)

    def _forget_end(self) -> None:
        """The connection lives on, and would hold this exchange."""
        if (closed := self.protocol.closed) is not None:
            closed.remove_done_callback(self._break_payload)
            closed.remove_done_callback(_retrieve)  # once is enough
            closed.add_done_callback(_retrieve)

    async def _next_message(self) -> Any:
        upload = self._upload
        if upload is None or (upload.done() and _failure(upload) is None):
            return await self._read_message()
        reading = asyncio.ensure_future(self._read_message())
        try:
            await asyncio.wait({reading, upload}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done() and upload.done() and (error := _failure(upload)) is not None:
                self._raise_unless_lost(error)
            return await reading
        finally:
            reading.cancel()

    @staticmethod
    def _raise_unless_lost(error: BaseException) -> None:
        """A worker that closed its side may have answered first; a client that failed is told at once."""
        if not isinstance(error, WorkerLost | OSError | aiohttp.ClientError):
            raise error

    async def _read_message(self) -> Any:
        try:
            return await self.protocol.read()
        except http_exceptions.HttpProcessingError as error:
            raise WorkerProtocolError(f"{self._base_url}: not HTTP: {error.message}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise WorkerLost(f"{self._base_url}: {_why(error)}", request_sent=True) from error

    async def read(self) -> bytes:
        payload = self._payload
        if payload is None:
            return b""
        try:
            if chunk := await payload.readany():
                return chunk
            if self._ends_by_close and isinstance(error := self.protocol.exception(), OSError):
                raise error  # aiohttp takes a reset for the end of such a body
        except http_exceptions.HttpProcessingError as error:
            raise WorkerProtocolError(f"{self._base_url}: {error.message}") from error
        except (aiohttp.ClientError, OSError) as error:
            message = f"{self._base_url}: {_why(error)} in the middle of the answer"
            raise WorkerLost(message, request_sent=True) from error
        self._finish()
        return b""

    def pass_to(self, take: Callable[[bytes], bool]) -> None:
        """aiohttp tells only who waits."""

    def take_whole(self) -> bytes | None:
        """aiohttp does not say how much of a body is there."""
        return None

    def _finish(self) -> None:
        self._forget_end()
        if self._upload is not None and (not self._upload.done() or _failure(self._upload) is not None):
            self.close()  # answered before it read the request: the connection holds half of it
        else:
            self._is_over = True
            self._connection.release()

    def close(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._forget_end()
        if self._upload is not None and not self._upload.cancel():
            _failure(self._upload)
        self.protocol.abort()  # at once, even where the worker does not take what was written
        self._connection.close()


def _retrieve(closed: asyncio.Future[None]) -> None:
    """Else asyncio complains that nobody asked how an idle connection ended."""
    closed.exception()


def _is_stale(connection: Any, is_tls: bool) -> bool:
    """Whether a connection is closed, or something came while nothing was asked: an end, or bytes nobody waits for."""
    transport = connection.transport
    if transport is None or transport.is_closing() or connection.protocol.should_close:
        return True
    if is_tls:
        return False
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _failure(task: asyncio.Task[None]) -> BaseException | None:
    return None if not task.done() or task.cancelled() else task.exception()


def _why(error: BaseException) -> str:
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the worker closed the connection"
    return str(error) or type(error).__name__
