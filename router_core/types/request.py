"""A request on its way to a worker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Protocol

import orjson

from router_core.errors import MalformedBody
from router_core.headers import Headers
from router_core.splice import remove_top_level_key, set_top_level_key

IDENTITY = (b"accept-encoding", b"identity")


class BodySource(Protocol):
    """Where a request's body comes from. One source serves every attempt of an exchange."""

    @property
    def is_declared(self) -> bool:
        """Whether the client announced a body, be it empty."""

    @property
    def whole(self) -> bytes | None:
        """The body, once every byte of it is in memory."""

    @property
    def length(self) -> int | None:
        """Its length in bytes as the client declared it."""

    @property
    def is_streamed(self) -> bool:
        """Whether some of it went to a worker unkept."""

    async def read_all(self) -> bytes:
        """The body whole, kept for later calls. Raises ClientLeft."""

    def stream(self) -> AsyncIterator[bytes]:
        """The body piece by piece, not kept: only one attempt can stream. Raises ClientLeft."""


class Request:
    """A request on its way to a worker. What is not changed here arrives byte for byte as the client sent it."""

    __slots__ = ("_body", "_body_parsed", "_edits", "_json", "_source", "arrived", "headers", "method", "path", "query")

    def __init__(self, method: str, path: bytes, query: bytes, headers: Headers, source: BodySource) -> None:
        self.method = method
        self.path = path
        """Raw path, as the client wrote it (without a session prefix)."""
        self.query = query
        """Raw query, without the question mark."""
        self.headers = headers
        """The client's end-to-end fields; what is changed here reaches the worker."""
        self._source = source
        self.arrived: bytes | None = None
        """For the core: the client's body, where all of it was here when the hooks began."""
        self._body: bytes | None = None
        self._edits: list[tuple[str, bytes | None]] = []  # None: the key goes
        self._json: Any = None
        self._body_parsed: bytes | None = None
        """What `_json` was parsed from."""

    async def body(self) -> bytes:
        """The body, whole, with every change applied.

        Raises ClientLeft, and Reject (413) above ``[router] max_body_bytes``.
        """
        if self._body is None:
            body = await self._source.read_all()
            if not self._edits:
                return body
            for name, value in self._edits:
                body = _edited(body, name, value)
            self._edits, self._body = [], body
        return self._body

    async def json(self) -> Any:
        """The body as JSON (NaN and Infinity pass). Raises MalformedBody, which becomes a 400 if nobody catches it."""
        return _parsed(await self.body())

    async def shared_json(self) -> Any:
        """The same, parsed once for all who ask this way: nobody may change it. Kept until the request is sent."""
        return self._shared(await self.body())

    def ready_json(self) -> Any:
        """`shared_json` of a body that is in memory already (`ready_body`); else None."""
        if self._body is None and self._body_parsed is not None and not self._edits:
            return self._json  # of what the client sent, as nearly always
        body = self.ready_body
        return None if body is None else self._shared(body)

    def _shared(self, body: bytes) -> Any:
        if self._body_parsed is not body:
            self._json, self._body_parsed = _parsed(body), body
        return self._json

    def set_body(self, body: bytes) -> None:
        """Replaces the body: exactly these bytes reach the worker, with a right Content-Length."""
        self._edits = []
        self._body = body
        self.headers.remove("content-encoding")

    def set_key(self, name: str, value: Any) -> None:
        """Sets one top-level key of a JSON body; the other bytes stay as they are. ``value`` is JSON-serialisable.

        A body that is no JSON object is left alone: the worker's own 400 tells the client.
        """
        self._edit(name, orjson.dumps(value))

    def remove_key(self, name: str) -> None:
        """Takes one top-level key out of a JSON body; the other bytes stay as they are."""
        self._edit(name, None)

    def _edit(self, name: str, value: bytes | None) -> None:
        if self._body is not None:
            self._body = _edited(self._body, name, value)
        else:
            self._edits.append((name, value))

    def accept_identity(self) -> None:
        """Asks the worker for an uncompressed answer; call it before ``call_next`` if you will read the answer."""
        name, wanted = IDENTITY
        if [value for field, value in self.headers.raw if field == name] != [wanted]:  # else somebody has asked before
            self.headers.set_raw(name, wanted)

    @property
    def has_edits(self) -> bool:
        """Whether changes wait for the body to be read."""
        return bool(self._edits)

    @property
    def can_be_sent(self) -> bool:
        """Whether the whole request can go to a worker: not once its body was streamed to one."""
        return self._body is not None or not self._source.is_streamed

    @property
    def source(self) -> BodySource:
        return self._source

    @property
    def ready_body(self) -> bytes | None:
        """The body as it would be sent, if it is in memory already."""
        if self._body is not None:
            return self._body
        if self._edits:
            return None
        return self._source.whole if self.arrived is None else self.arrived

    def fork(self) -> Request:
        """A copy for one attempt: changing it leaves this one alone. Bodies are shared, not copied."""
        copy = Request(self.method, self.path, self.query, self.headers.copy(), self._source)
        copy._body, copy._edits, copy.arrived = self._body, list(self._edits), self.arrived
        copy._json, copy._body_parsed = self._json, self._body_parsed  # to one who forgets it when it is sent
        self.forget_json()
        return copy

    def forget_json(self) -> None:
        """It is sent: while the worker makes its answer, the parsed body is not needed."""
        self._json = self._body_parsed = None


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise MalformedBody(f"the body is not JSON: {error}") from error


def _edited(body: bytes, name: str, value: bytes | None) -> bytes:
    return remove_top_level_key(body, name) if value is None else set_top_level_key(body, name, value)
