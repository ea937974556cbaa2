"""A client that sends exact bytes over a real socket and says exactly what came back."""

import asyncio
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Self

from router_core.testing.answer import RawAnswer, build_request
from router_core.testing.http1 import BodyReader, Fields, Framing, MalformedHttpError, read_head
from router_core.testing.wire import BUFFER_BYTES, CutShortError, Wire

TIMEOUT_S = 10.0


class NoAnswerError(ConnectionError):
    """The connection ended before a whole answer head had come; ``partial`` is what had."""

    def __init__(self, partial: bytes = b"") -> None:
        super().__init__(f"the connection ended without an answer, after {partial[:80]!r}")
        self.partial = partial


class RawClient:
    """One connection: ``async with RawClient(port) as client``.

    ``receive_buffer_bytes`` shrinks the kernel's buffer (SO_RCVBUF), so that a reader that holds back is felt at once.
    Every wait has a ``timeout_s`` and ends with TimeoutError.
    """

    def __init__(self, port: int, host: str = "127.0.0.1", *, receive_buffer_bytes: int | None = None) -> None:
        self.host = host
        self.port = port
        self.receive_buffer_bytes = receive_buffer_bytes
        self._wire: Wire

    async def __aenter__(self) -> Self:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            if self.receive_buffer_bytes is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer_bytes)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(connection, (self.host, self.port))
            buffer_bytes = min(BUFFER_BYTES, self.receive_buffer_bytes or BUFFER_BYTES)
            _, self._wire = await loop.create_connection(lambda: Wire(buffer_bytes=buffer_bytes), sock=connection)
        except BaseException:
            connection.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._wire.close()
        await self._wire.wait_closed()

    async def send(self, *parts: bytes, timeout_s: float | None = TIMEOUT_S) -> None:
        """Exactly these bytes; returns when the kernel has them. Half an upload is a part of ``build_request(...)``."""
        async with asyncio.timeout(timeout_s):
            for part in parts:
                await self._wire.send(part)

    async def request(
        self,
        method: str = "POST",
        target: str | bytes = "/generate",
        headers: Fields = (),
        body: bytes = b"",
        *,
        json: object = None,
        on_chunk: Callable[[bytes], None] | None = None,
        timeout_s: float | None = TIMEOUT_S,
    ) -> RawAnswer:
        """Build a request, send it, read its answer to the end.

        An answer that comes before the upload is through ends the upload; the connection is then of no more use.
        """
        host = f"{self.host}:{self.port}"
        asked = build_request(method, target, headers, body, host=host, json=json)
        sending = asyncio.create_task(self.send(asked, timeout_s=timeout_s))
        try:
            return await self.read_answer(method, on_chunk=on_chunk, timeout_s=timeout_s)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def read_head(self, method: str = "POST", *, timeout_s: float | None = TIMEOUT_S) -> RawAnswer:
        """The next final answer's head, with the interim ones before it. ``method`` says whether a body may follow.

        Raises NoAnswerError when the connection ended first, MalformedHttpError when it is no HTTP.
        """
        interim: list[RawAnswer] = []
        async with asyncio.timeout(timeout_s):
            while True:
                answer = await self._read_one_head()
                if not (100 <= answer.status < 200 and answer.status != 101):
                    break
                interim.append(answer)
        answer.interim = interim
        answer.reader = self._body_reader(answer, method)
        return answer

    async def read_piece(self, answer: RawAnswer, *, timeout_s: float | None = TIMEOUT_S) -> bytes:
        """The next piece of its body (one chunk, if chunked), ``b""`` at the end."""
        async with asyncio.timeout(timeout_s):
            piece = await answer.reader.read_piece()
        answer.body += piece
        return piece

    async def read_body(
        self,
        answer: RawAnswer,
        *,
        on_chunk: Callable[[bytes], None] | None = None,
        keep: bool = True,
        timeout_s: float | None = TIMEOUT_S,
    ) -> bytes:
        """The rest of its body; ``keep=False`` throws the bytes away once ``on_chunk`` has seen them."""
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(timeout_s):
                while piece := await answer.reader.read_piece():
                    if keep:
                        pieces.append(piece)
                    if on_chunk is not None:
                        on_chunk(piece)
        finally:
            answer.body += b"".join(pieces)
        return answer.body

    async def read_answer(
        self,
        method: str = "POST",
        *,
        on_chunk: Callable[[bytes], None] | None = None,
        timeout_s: float | None = TIMEOUT_S,
    ) -> RawAnswer:
        """The next answer to its end, however it ends: look at ``clean``."""
        answer = await self.read_head(method, timeout_s=timeout_s)
        await self.read_body(answer, on_chunk=on_chunk, timeout_s=timeout_s)
        return answer

    def hold_reading(self) -> None:
        """Take nothing more from the socket until ``resume_reading``."""
        self._wire.hold_reading()

    def resume_reading(self) -> None:
        self._wire.resume_reading()

    def end_sending(self) -> None:
        """Half-close: FIN after what was sent, go on reading."""
        self._wire.end_sending()

    def leave(self) -> None:
        """Close the connection (FIN)."""
        self._wire.close()

    def reset(self) -> None:
        """Break the connection (RST)."""
        self._wire.reset()

    async def wait_closed(self, *, timeout_s: float | None = TIMEOUT_S) -> None:
        """Until the other side has closed; TimeoutError when it does not."""
        async with asyncio.timeout(timeout_s):
            await self._wire.wait_for_end()

    async def _read_one_head(self) -> RawAnswer:
        try:
            head = await read_head(self._wire)
        except CutShortError as cut:
            if cut.partial and not cut.partial.startswith(b"HTTP/"[: len(cut.partial)]):
                raise MalformedHttpError(f"an answer that begins with {cut.partial[:80]!r}") from cut
            raise NoAnswerError(cut.partial) from cut
        if head is None:
            raise NoAnswerError
        return RawAnswer(head.raw)

    def _body_reader(self, answer: RawAnswer, method: str) -> BodyReader:
        if method == "HEAD" or answer.status in (204, 304):
            return BodyReader(self._wire, "none")
        framing: Framing = "close" if answer.framing == "none" else answer.framing
        return BodyReader(self._wire, framing, answer.length if framing == "length" else 0)


async def exchange_once(
    port: int,
    method: str = "POST",
    target: str | bytes = "/generate",
    headers: Fields = (),
    body: bytes = b"",
    *,
    host: str = "127.0.0.1",
    json: object = None,
    on_chunk: Callable[[bytes], None] | None = None,
    timeout_s: float | None = TIMEOUT_S,
) -> RawAnswer:
    """One request on a connection of its own."""
    async with RawClient(port, host) as client:
        return await client.request(method, target, headers, body, json=json, on_chunk=on_chunk, timeout_s=timeout_s)
