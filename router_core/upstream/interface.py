"""The way to a worker and back, as the core sees it: clients for data traffic are interchangeable behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from router_core.headers import RawHeaders

IDLE_S = 4.0
"""Seconds an idle connection is kept: SGLang and vLLM close theirs after 5."""


class Outgoing:
    """A request as it goes over the wire to one worker."""

    __slots__ = ("base_url", "body", "headers", "length", "method", "stream", "target")

    def __init__(self, method: str, base_url: str, target: bytes, headers: RawHeaders, body: bytes | None) -> None:
        self.method = method
        self.base_url = base_url
        self.target = target
        """Raw path and query; the path prefix of ``base_url`` is put before it."""
        self.headers = headers
        """End-to-end fields without Host and framing; both are written by the client."""
        self.body = body
        """The whole body; None where there is none or it is streamed."""
        self.stream: AsyncIterator[bytes] | None = None
        self.length: int | None = None
        """Length of the streamed body in bytes, None for chunked."""


class Incoming:
    """A worker's answer; the head is there. (A base and no protocol, as `Inbound` is.)"""

    __slots__ = ("headers", "status")

    status: int
    headers: RawHeaders
    """End-to-end fields, lower-case names."""

    async def read(self) -> bytes:
        """The next piece of the body, ``b""`` once it is whole. Raises WorkerLost, WorkerProtocolError."""
        raise NotImplementedError

    def pass_to(self, take: Callable[[bytes], bool]) -> None:
        """Has ``take`` called with a piece while somebody waits in `read`, who then waits on.

        Where it answers False, `read` gives the piece, as it gives the last one. Not every client does so.
        """
        raise NotImplementedError

    def take_whole(self) -> bytes | None:
        """The whole body in place of every `read`, if it is all there and nothing of it was read; else None."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives the connection up; one whose answer is whole goes back to the pool."""
        raise NotImplementedError


class Upstream:
    """A client for data traffic."""

    __slots__ = ()

    async def send(self, request: Outgoing, on_write: Callable[[], None]) -> Incoming:
        """Sends and waits for the answer's head. ``on_write`` is called before the first byte is written.

        Raises WorkerUnreachable (nothing was sent), WorkerLost, WorkerProtocolError, and what ``request.stream``
        raises. Cancelling it closes the connection.
        """
        raise NotImplementedError

    async def aclose(self) -> None:
        raise NotImplementedError
