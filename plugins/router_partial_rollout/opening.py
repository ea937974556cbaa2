"""Tells from the beginning of an answer that its end is no abort, so that the rest of it need not be kept."""

from __future__ import annotations

from collections.abc import AsyncIterator

from router_core import Pieces, ValueScanner

KEY = b"finish_reason"
UNSURE = (b"abort", b"\\", b"null")
"""What a reason that is perhaps an abort holds: the word, an escape that may spell it, or nothing yet."""


class Opening:
    """The chunks of an answer of one JSON: read until its first finish reason has come, then as they come.

    Engines tell it before what is large: SGLang's `/generate` behind text and ids, a choice of vLLM behind its
    logprobs, both before the routed experts.
    """

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._held: list[bytes] = []

    async def is_no_abort(self) -> bool:
        """Reads up to the finish reason; False where it may be an abort, or where the body ended without one."""
        scanner = ValueScanner(KEY, takes_scalars=True)
        async for chunk in self._chunks:
            self._held.append(chunk)
            scanner.feed(chunk)
            scanner.drain()
            if scanner.values and scanner.values[0].stop is not None:
                sink = scanner.values[0].sink
                return isinstance(sink, Pieces) and not any(word in sink.joined() for word in UNSURE)
        return False

    async def all(self) -> AsyncIterator[bytes]:
        """Every chunk: those that were held first."""
        held, self._held = self._held, []
        held.reverse()
        while held:
            yield held.pop()
        async for chunk in self._chunks:
            yield chunk
