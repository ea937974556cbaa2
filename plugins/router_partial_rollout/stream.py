"""A stream over several dispatches, as one: nothing ends, repeats or goes back where two segments meet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from router_core import Answer, EventSplitter, Reject, WorkerFault
from router_partial_rollout.chat_stream import ChatStart
from router_partial_rollout.completion_stream import CompletionReader
from router_partial_rollout.completions import Completions
from router_partial_rollout.generate import Generate
from router_partial_rollout.generate_stream import GenerateReader
from router_partial_rollout.inference import Inference
from router_partial_rollout.inference_stream import InferenceReader
from router_partial_rollout.plain_chat import PlainChat
from router_partial_rollout.plain_chat_stream import PlainChatReader
from router_partial_rollout.rollout import Rollout
from router_partial_rollout.wire import Json, SegmentError, Wire

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

    def start_from(self, part: Json) -> None:
        """This aborted part came in another call, and the client has nothing of it in this one."""
        ...

    def begin(self) -> None:
        """Events of another segment follow."""
        ...

    async def final(self) -> bytes:
        """The abort is the end."""
        ...


READERS: dict[type[Wire], Callable[[Rollout, Wire], Reader]] = {
    Generate: GenerateReader,
    Completions: CompletionReader,
    Inference: InferenceReader,
    PlainChat: PlainChatReader,
}


async def stream(rollout: Rollout, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """What the client gets for this answer's chunks and those that continue it."""
    source = _Source(chunks)
    try:
        if rollout.is_chat:
            async for passed in _from_chat(rollout, source):
                yield passed
        else:
            async for passed in _from_tokens(rollout, _reader_of(rollout), source):
                yield passed
    except SegmentError as error:
        raise Reject(502, "segment_mismatch", f"the segments of the answer do not fit together: {error}") from None
    finally:
        await source.aclose()


class _Source:
    """The chunks of the newest answer, as events."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks

    async def go_on(self, rollout: Rollout) -> bool:
        """Whether there is a further answer; its events follow."""
        rest = await rollout.dispatches.rest()
        if rest is not None and not is_stream(rest):
            await rest.aclose()
            return False
        if rest is not None:
            self._chunks = rest.chunks
        return rest is not None

    async def events(self) -> AsyncIterator[bytes]:
        splitter = EventSplitter()
        async for chunk in self._chunks:
            for event in splitter.feed(chunk):
                yield event
        if rest := splitter.rest():
            yield rest

    async def aclose(self) -> None:
        close = getattr(self._chunks, "aclose", None)
        if close is not None:
            await close()


async def _from_tokens(rollout: Rollout, reader: Reader, source: _Source) -> AsyncIterator[bytes]:
    """From a stream of tokens on."""
    while True:
        events = source.events()
        try:
            async for event in events:
                passed = await reader.read(event)
                if reader.is_aborted:
                    if reader.part is not None and await rollout.is_continued(reader.part):
                        break
                    passed = await reader.final()
                if passed:
                    yield passed
            else:
                return
            await _drain(events)
        except WorkerFault:
            is_wanted = rollout.continues_lost and reader.part is not None
            if not is_wanted or not await rollout.is_continued(reader.part or {}, is_lost=True):
                raise
        if kept := reader.kept():
            yield kept
        if not await source.go_on(rollout):
            yield await reader.final()
            yield DONE
            return
        reader.begin()


async def _from_chat(rollout: Rollout, source: _Source) -> AsyncIterator[bytes]:
    """From a chat stream on, which becomes one of tokens with its first abort."""
    while True:
        chat = ChatStart(lambda: rollout.is_abort_likely)
        async for passed in chat.passing(source.events()):
            yield passed
        part = await rollout.out_of_chat(b"".join(chat.told), is_stream=True) if chat.is_aborted else None
        goes_on = part is not None and await rollout.is_continued(part)
        if part is None or not (goes_on or rollout.is_changed):
            yield chat.take_held()
            return
        rollout.settle_form()
        if not rollout.is_chat:
            break
        if not await source.go_on(rollout):
            yield chat.take_held()
            return
    reader = _reader_of(rollout)
    reader.start_from(part)
    if goes_on:
        if kept := reader.kept():
            yield kept
        if await source.go_on(rollout):
            reader.begin()
            async for passed in _from_tokens(rollout, reader, source):
                yield passed
            return
    yield await reader.final()
    yield DONE


async def _drain(events: AsyncIterator[bytes]) -> None:
    """An aborted answer to its end, so that its connection can be used again."""
    try:
        async for _ in events:
            pass
    except WorkerFault:
        pass  # it has said what was wanted


def _reader_of(rollout: Rollout) -> Reader:
    """How the streams of this rollout's wire are read."""
    if rollout.wire is None:
        raise SegmentError("an answer in an unknown shape")
    return READERS[type(rollout.wire)](rollout, rollout.wire)
