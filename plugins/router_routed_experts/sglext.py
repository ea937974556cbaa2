"""Leaves out of a stream the event in which SGLang says only what the client did not ask for."""

from __future__ import annotations

EVENT_END = b"\n\n"
MARK = b'"sglext"'
NO_CHOICES = (b'"choices":[]', b'"choices": []')
MAX_HELD_BYTES = 1 << 20


class SglextFilter:
    """Passes a stream event by event, but for the one that has an ``sglext`` and no choice.

    An event is held until it is whole; one that grows above a bound passes as it comes.
    """

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """What may pass on; perhaps nothing."""
        if not self._held and chunk.endswith(EVENT_END) and MARK not in chunk:
            return chunk
        *events, rest = (self._held + chunk).split(EVENT_END)
        passed = b"".join(event + EVENT_END for event in events if not _is_extra(event))
        if len(rest) > MAX_HELD_BYTES:
            passed, rest = passed + rest, b""
        self._held = rest
        return passed

    def rest(self) -> bytes:
        """What is still held at the end of the stream."""
        held, self._held = self._held, b""
        return held


def _is_extra(event: bytes) -> bool:
    return MARK in event and any(mark in event for mark in NO_CHOICES)
