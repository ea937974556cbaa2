"""A stream over several dispatches, as one: nothing ends, repeats or goes back where two segments meet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from router_core import Answer, EventSplitter, Reject, WorkerFault
from router_partial_rollout.completion_stream import CompletionReader
from router_partial_rollout.generate_stream import GenerateReader
from router_partial_rollout.rollout import Rollout
from router_partial_rollout.wire import Json, SegmentError

EVENT_STREAM = "text/event-stream"
DONE = b"data: [DONE]\n\n"


def is_stream(answer: Answer) -> bool:
    return (answer.headers.get("content-type") or "").startswith(EVENT_STREAM)


class Reader(Protocol):
    """Reads the events of one segment after another. ``part``: the newest one as far as it came."""

    part: Json | None
    is_aborted: bool

    async def read(self, event: bytes) -> bytes:
        """What the client gets of this event; nothing of one that says abort, which `is_aborted` tells."""
        ...

    def kept(self) -> bytes:
        """The abort is no end: what the client gets of its event. Called once its part was taken."""
        ...

    def begin(self) -> None:
        """Events of another segment follow."""
        ...

    async def final(self) -> bytes:
        """The abort is the end."""
        ...


async def stream(rollout: Rollout, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """What the client gets for this answer's chunks and those that continue it."""
    reader = reader_of(rollout)
    try:
        while True:
            events = _events(chunks)
            try:
                async for event in events:
                    passed = await reader.read(event)
                    if reader.is_aborted:
                        if await _is_continued(rollout, reader):
                            break
                        passed = await reader.final()
                    if passed:
                        yield passed
                else:
                    return
                await _drain(events)
            except WorkerFault:
                if not rollout.continues_lost or not await _is_continued(rollout, reader, is_lost=True):
                    raise
            if kept := reader.kept():
                yield kept
            rest = await rollout.dispatch_rest()
            if rest is None or not is_stream(rest):
                if rest is not None:
                    await rest.aclose()
                yield await reader.final()
                yield DONE
                return
            chunks = rest.chunks
            reader.begin()
    except SegmentError as error:
        raise Reject(502, "segment_mismatch", f"the segments of the answer do not fit together: {error}") from None
    finally:
        await _close(chunks)


async def _is_continued(rollout: Rollout, reader: Reader, *, is_lost: bool = False) -> bool:
    part = reader.part
    if part is None or not await rollout.is_continued(part, is_lost=is_lost):
        return False
    if rollout.wire is not None and rollout.wire.ids(part):
        rollout.take(part)
    return True


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    splitter = EventSplitter()
    async for chunk in chunks:
        for event in splitter.feed(chunk):
            yield event
    if rest := splitter.rest():
        yield rest


async def _drain(events: AsyncIterator[bytes]) -> None:
    """An aborted answer to its end, so that its connection can be used again."""
    try:
        async for _ in events:
            pass
    except WorkerFault:
        pass  # it has said what was wanted


async def _close(chunks: AsyncIterator[bytes]) -> None:
    close = getattr(chunks, "aclose", None)
    if close is not None:
        await close()


def reader_of(rollout: Rollout) -> Reader:
    """How the streams of this rollout's wire are read."""
    if rollout.wire is None:
        raise SegmentError("an answer in an unknown shape")
    return (CompletionReader if rollout.wire.flags else GenerateReader)(rollout, rollout.wire)
