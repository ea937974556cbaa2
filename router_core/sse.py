"""Server-sent events: cuts a stream of chunks into whole events, whatever the cuts.

A chunk is not an event: an event may come in ten chunks and ten events in one. Line ends are LF, CR or CRLF
(WHATWG HTML, section 9.2.5); an event ends with an empty line. Bytes are kept as they are, so the joined
events are the stream.
"""

from __future__ import annotations

import re

_EVENT_END = re.compile(rb"\r\n\r\n|\r\n\n|\r\n\r(?!\n)|\n\r\n|\n\n|\n\r(?!\n)|\r\r\n|\r\r(?!\n)")
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventSplitter:
    """Feeds on chunks, gives whole events.

    >>> splitter = EventSplitter()
    >>> splitter.feed(b"data: 1\\n\\nda"), splitter.feed(b"ta: 2\\n\\n")
    ([b'data: 1\\n\\n'], [b'data: 2\\n\\n'])

    Raises ValueError when one event grows above ``max_event_bytes``.
    """

    def __init__(self, max_event_bytes: int = 256 * 1024 * 1024) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._max_event_bytes = max_event_bytes

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that this chunk completes, each with its closing empty line."""
        buffer = self._buffer
        buffer += chunk
        events: list[bytes] = []
        start = 0
        search = self._searched
        while (found := _EVENT_END.search(buffer, search)) is not None:
            if found.end() == len(buffer) and buffer.endswith(b"\r"):
                break  # a LF that belongs to this line end may still come
            events.append(bytes(buffer[start : found.end()]))
            start = search = found.end()
        if start:
            del buffer[:start]
        self._searched = max(0, len(buffer) - 4)
        if len(buffer) > self._max_event_bytes:
            raise ValueError(f"one event is longer than {self._max_event_bytes} bytes")
        return events

    def rest(self) -> bytes:
        """What came after the last whole event; empty at a clean end of a stream."""
        tail = bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return tail


def event_data(event: bytes) -> bytes | None:
    """The data of one event: its ``data`` lines joined by LF, or None when it has none (a comment)."""
    lines = [line for line in _LINE_END.split(event.removeprefix(b"\xef\xbb\xbf")) if line.split(b":", 1)[0] == b"data"]
    if not lines:
        return None
    values = [line[5:] if line.startswith(b"data:") else b"" for line in lines]
    return b"\n".join(value.removeprefix(b" ") for value in values)
