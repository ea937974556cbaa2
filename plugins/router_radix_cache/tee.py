"""Keeps what an answer says while its bytes pass, without what is large and not needed."""

from __future__ import annotations

from router_core import ValueScanner, keep_nothing
from router_radix_cache.unusable import Unusable, UnusableError

EXPERTS = b"routed_experts"
EVENT_END = b"\n\n"
DATA = b"data:"
DONE = b"[DONE]"


class AnswerTee:
    """Takes the chunks of one answer; ``body`` is its JSON once it has passed.

    Routed experts are cut out as they come. A stream is cumulative, so of its events the last one is kept.
    """

    def __init__(self, *, is_stream: bool, max_bytes: int) -> None:
        self._is_stream = is_stream
        self._max_bytes = max_bytes
        self._scanner = ValueScanner(EXPERTS, open_sink=keep_nothing, replacement=b"null")
        self._pieces: list[bytes | memoryview] = []
        self._size = 0
        self._last_event = b""
        self._is_too_large = False

    def feed(self, chunk: bytes) -> None:
        """Take in the next chunk; nothing is copied that does not end an event."""
        self._scanner.feed(chunk)
        pieces = self._scanner.drain()
        if not self._scanner.is_inside:
            self._scanner.values.clear()
        if self._is_too_large:
            return
        for piece in pieces:
            self._pieces.append(piece)
            self._size += len(piece)
        if self._is_stream and (EVENT_END in chunk or self._ends_across(chunk)):
            self._keep_last_event()
        if self._size > self._max_bytes:
            self._is_too_large = True
            self._pieces.clear()

    def body(self) -> bytes:
        """The answer's JSON; raises ``UnusableError`` when it was too large to be kept."""
        if self._is_too_large:
            raise UnusableError(Unusable.TOO_LARGE, f"more than {self._max_bytes} bytes")
        return self._last_event if self._is_stream else b"".join(self._pieces)

    def _ends_across(self, chunk: bytes) -> bool:
        """Whether the end of an event lies in two chunks."""
        return chunk.startswith(b"\n") and self._size > len(chunk)

    def _keep_last_event(self) -> None:
        *events, rest = b"".join(self._pieces).split(EVENT_END)
        self._pieces, self._size = [rest], len(rest)
        for event in reversed(events):
            data = event.strip(b"\n").removeprefix(DATA).strip()
            if event.strip(b"\n").startswith(DATA) and data != DONE:
                self._last_event = data
                return


def whole_body(body: bytes, max_bytes: int) -> bytes:
    """The JSON of an answer that is all there; raises ``UnusableError`` when it is too large."""
    if EXPERTS not in body and len(body) <= max_bytes:
        return body  # nothing is to be cut out
    tee = AnswerTee(is_stream=False, max_bytes=max_bytes)
    tee.feed(body)
    return tee.body()
