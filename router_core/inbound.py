"""What a front hands over: one request, and the way back to its client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from router_core.errors import RouterError
from router_core.headers import RawHeaders
from router_core.upload import Upload

Room = Awaitable[None] | None
"""None, or what to await until the client has room for more."""


class Inbound:
    """One request, and the way back to its client; each front has its own.

    An answer goes out by `whole`, or by `begin`, any number of `write` and `end`. (A base and no protocol: compiled,
    what is asked of a protocol is looked up by its name.)
    """

    __slots__ = ("client_host", "headers", "http_version", "method", "path", "query", "scheme")

    method: str
    path: bytes
    """Raw, as the client wrote it."""
    query: bytes
    headers: RawHeaders
    """Every field that came; lower-case names."""
    http_version: str
    scheme: str
    client_host: str | None

    def open(self, upload: Upload, interrupt: Callable[[RouterError], None]) -> Awaitable[None] | None:
        """From now on ``upload`` is fed, and ``interrupt`` told ClientLeft, or the Reject of a body that is too long.

        What it gives is awaited until the first piece is there, which is the whole of most bodies; None: it is.
        Raises ClientLeft, Reject, at once or awaited.
        """
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancels the task that serves it."""
        raise NotImplementedError

    def close(self) -> None:
        """The exchange is over: nobody is to be told any more."""
        raise NotImplementedError

    def whole(self, status: int, fields: RawHeaders, body: bytes) -> Room:
        """A whole answer; ``fields`` tell the length of its body, unless it can have none."""
        raise NotImplementedError

    def begin(self, status: int, fields: RawHeaders, *, is_chunked: bool) -> Room:
        """The head of one whose body comes piece by piece. ``is_chunked``: it has a body, and no length."""
        raise NotImplementedError

    def write(self, chunk: bytes) -> Room:
        """A piece of its body."""
        raise NotImplementedError

    def write_now(self, chunk: bytes) -> bool:
        """The same from whoever cannot await; False: not now, and nothing was written."""
        raise NotImplementedError

    def end(self) -> Room:
        """It is whole."""
        raise NotImplementedError

    def break_off(self) -> None:
        """The answer broke after its head had left: the client must see that no end came."""
        raise NotImplementedError
