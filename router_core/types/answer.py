"""A reply on its way to the client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import orjson

from router_core.errors import Reject
from router_core.headers import Headers

MAX_COLLECTED_BYTES = 1 << 30


class Arriving:
    """The chunks of an answer that may be here all at once."""

    __slots__ = ()

    def __aiter__(self) -> Arriving:
        return self

    async def __anext__(self) -> bytes:
        raise NotImplementedError

    def take_whole(self) -> bytes | None:
        """Everything at once, if it is all here and nothing of it was read; else None."""
        raise NotImplementedError


class Answer:
    """Status, headers and body of a reply. The body is a stream (``chunks``) until somebody awaits `body`."""

    __slots__ = ("_body", "_chunks", "error_code", "headers", "status")

    def __init__(
        self,
        status: int,
        headers: Headers | None = None,
        *,
        body: bytes | None = None,
        chunks: AsyncIterator[bytes] | None = None,
    ) -> None:
        self.status = status
        self.headers = headers if headers is not None else Headers()
        self._chunks = chunks
        self._body = body if chunks is None else None
        self.error_code: str | None = None
        """The code of the router's own error, where this answer is one."""
        if chunks is None:
            self.set_body(body or b"")
        else:
            _check(chunks)

    @classmethod
    def json(cls, status: int, value: Any, headers: Headers | None = None) -> Answer:
        """An answer with ``value`` as its JSON body."""
        headers = headers if headers is not None else Headers()
        headers.set("content-type", "application/json")
        return cls(status, headers, body=_json(value))

    @classmethod
    def error(cls, reject: Reject, **more: Any) -> Answer:
        """The router's error envelope; ``more`` is put beside the message."""
        kind = "invalid_request_error" if reject.status < 500 else "router_error"
        error = {"message": reject.message, "type": kind, "code": reject.code, **more}
        if reject.param is not None:
            error["param"] = reject.param
        headers = Headers()
        headers.add("x-router-error", reject.code)
        if reject.retry_after_s is not None:
            headers.add("retry-after", str(max(1, round(reject.retry_after_s))))
        answer = cls.json(reject.status, {"error": error}, headers)
        answer.error_code = reject.code
        return answer

    @property
    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Assigning a wrapped iterator removes Content-Length."""
        if self._chunks is None:
            self._chunks = _OneChunk(self._body or b"")
        return self._chunks

    @chunks.setter
    def chunks(self, chunks: AsyncIterator[bytes]) -> None:
        _check(chunks)
        self._chunks, self._body = chunks, None
        self.headers.remove("content-length")

    @property
    def is_encoded(self) -> bool:
        """Whether its bytes are compressed: it has a Content-Encoding that is not ``identity``."""
        for field, value in self.headers.raw:
            if field == b"content-encoding":
                return value.lower() not in (b"identity", b"")
        return False

    @property
    def ready_body(self) -> bytes | None:
        """The whole body, if it is in memory; else None."""
        return self._body

    def arrived_body(self) -> bytes | None:
        """The whole body, if every byte of it is here by now; else None, and the chunks are as they were."""
        if self._body is None:
            chunks: object = self._chunks
            if isinstance(chunks, Arriving) and (body := chunks.take_whole()) is not None:
                self._body, self._chunks = body, None
        return self._body

    async def body(self, max_bytes: int = MAX_COLLECTED_BYTES) -> bytes:
        """Reads the stream to its end and keeps it.

        Raises WorkerFault if it breaks, Reject (502) above ``max_bytes``.
        """
        if self._body is None:
            parts, size = [], 0
            async for chunk in self.chunks:
                parts.append(chunk)
                size += len(chunk)
                if size > max_bytes:
                    await self.aclose()
                    raise Reject(502, "answer_too_large", f"the worker's answer is longer than {max_bytes} bytes")
            self._body, self._chunks = b"".join(parts), None
        return self._body

    def set_body(self, body: bytes) -> None:
        """Replaces the body by these bytes, with a right Content-Length."""
        self._body, self._chunks = body, None
        self.headers.set("content-length", str(len(body)))

    async def aclose(self) -> None:
        """Gives the stream up: its worker's connection is closed if the last byte has not passed."""
        close = getattr(self._chunks, "aclose", None)
        if close is not None:
            await close()


def _check(chunks: object) -> None:
    """Raises TypeError for what is no stream: an ``async for`` over it ends the process where mypyc compiled it."""
    if chunks is not None and not hasattr(chunks.__class__, "__aiter__"):
        raise TypeError(f"chunks are an asynchronous iterator of bytes, not {chunks!r}")


def _json(value: Any) -> bytes:
    """As orjson writes it; what it refuses (lone surrogates, huge numbers, foreign objects) is escaped or named."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, default=str).encode()


class _OneChunk:
    """A body that is in memory, as a stream."""

    __slots__ = ("_body",)

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __aiter__(self) -> _OneChunk:
        return self

    async def __anext__(self) -> bytes:
        body, self._body = self._body, b""
        if not body:
            raise StopAsyncIteration
        return body
