"""A stream over several dispatches, as one: nothing ends, repeats or goes back where two segments meet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import orjson

from router_core import Answer, EventSplitter, Reject, WorkerFault, event_data
from router_partial_rollout.completions import head_of, joined_logprobs, joined_usage, offset_after
from router_partial_rollout.rollout import Rollout, read_part
from router_partial_rollout.text import NO_CHARACTER, is_same_text
from router_partial_rollout.wire import Finish, Json, SegmentError, Wire

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


class _SeamText:
    """The text that goes on behind a seam: right from the first whole character on."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self.shown = ""
        """What the client has."""
        self._base: str | None = None
        self._skip = 0

    def begin(self) -> None:
        self._base, self._skip = None, 0

    async def grown(self, before: str, ids: list[int], part_ids: list[int], part_text: str) -> str:
        """All text: ``ids`` are those of all segments; ``part_text`` is the newest segment's by its worker."""
        if self._base is None:
            whole = await self._rollout.decode(ids)
            if whole is None or not is_same_text(whole, before + part_text):
                self._base = before.rstrip(NO_CHARACTER)
            elif whole.endswith(NO_CHARACTER) or ((await self._rollout.decode(part_ids)) or "").endswith(NO_CHARACTER):
                # either a character is not whole yet, or the worker waits for what it takes for one
                return self._show(whole)
            else:
                self._base, self._skip = whole, len(part_text)
        return self._show(self._base + part_text[self._skip :])

    def _show(self, text: str) -> str:
        """Nothing that was shown is taken back, and what may become a character waits."""
        text = self._rollout.settled(text)
        self.shown = text if len(text) > len(self.shown) else self.shown
        return self.shown


class GenerateReader:
    """``/generate``: each event repeats the whole answer so far; one of a later segment gets what was before."""

    def __init__(self, rollout: Rollout, wire: Wire) -> None:
        self.is_aborted = False
        self._rollout, self._wire = rollout, wire
        self._raw: bytes | None = None
        self._part: Json | None = None
        self._event = b""
        self._text = _SeamText(rollout)

    @property
    def part(self) -> Json | None:
        return self._part if self._part is not None else read_part(self._raw) if self._raw is not None else None

    @part.setter
    def part(self, value: Json | None) -> None:
        self._part = value

    def begin(self) -> None:
        self.is_aborted, self._part, self._raw = False, None, None
        self._text.begin()

    def kept(self) -> bytes:
        return b""

    async def read(self, event: bytes) -> bytes:
        data = event_data(event)
        if data is None or data == b"[DONE]":
            return event
        self._raw, self._part = data, None
        is_first = self._rollout.whole is None
        if is_first and b'"abort"' not in data:
            return event
        part = read_part(data)
        if part is None or "error" in part:
            return event
        finish = self._wire.finish(part)
        if self._rollout.may_go_on(part):
            self.is_aborted, self._part, self._event = True, part, event
            return b""
        return event if is_first else await self._grown(part, finish)

    async def _grown(self, part: Json, finish: Finish) -> bytes:
        rollout, wire = self._rollout, self._wire
        if finish.kind is not None:
            rollout.take(part)
            return _event(await rollout.finished())
        before = wire.text(rollout.whole or {})
        joined = rollout.joined(part, is_growing=True)
        wire.set_text(joined, await self._text.grown(before, *self._ids(joined, part), wire.text(part)))
        return _event(joined)

    def _ids(self, joined: Json, part: Json) -> tuple[list[int], list[int]]:
        return self._wire.ids(joined) or [], self._wire.ids(part) or []

    async def final(self) -> bytes:
        self.is_aborted = False
        rollout = self._rollout
        if rollout.whole is None:
            return _event(self._part) if rollout.is_changed and self._part is not None else self._event
        if self._part is not None and self._part is not rollout.last_part:
            rollout.take(self._part)
        return _event(await rollout.finished())


class CompletionReader:
    """``/v1/completions``: each event is what was added, and ids come with each."""

    def __init__(self, rollout: Rollout, wire: Wire) -> None:
        self.part: Json | None = None
        self.is_aborted = False
        self._rollout, self._wire = rollout, wire
        self._held: tuple[bytes, Json] = (b"", {})
        """The event that said abort, as it came."""
        self._kept = b""
        """What the client gets of it where it is no end, but for the first segment's."""
        self._text = _SeamText(rollout)

    def begin(self) -> None:
        self.is_aborted, self.part = False, None
        self._text.begin()

    async def read(self, event: bytes) -> bytes:
        data = event_data(event)
        chunk = None if data is None or data == b"[DONE]" else read_part(data)
        if chunk is None or "error" in chunk:
            return event
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return event if self._rollout.whole is None else _event(self._counted(chunk))
        choice = choices[0]
        self._add(chunk, choice)
        if self._rollout.may_go_on(chunk):
            self.is_aborted, self._held = True, (event, chunk)
            if self._rollout.whole is not None:
                self._kept = _told(await self._moved(chunk, _without_end(choice)))
            return b""
        if self._rollout.whole is None:
            self._text.shown += choice.get("text") or ""
            return _event(self._stripped(chunk)) if self._is_told(choice) else event
        return _event(await self._moved(chunk, choice))

    def _add(self, chunk: Json, choice: Json) -> None:
        """Puts an event's tokens into ``part``."""
        if self.part is None:
            self.part = {**chunk, "choices": [dict(choice)]}
            choice = {}
        part: Json = self.part["choices"][0]
        if choice:
            for key in ("text", "token_ids"):
                if choice.get(key):
                    part[key] = (part.get(key) or type(choice[key])()) + choice[key]
            if choice.get("logprobs") is not None:
                # offsets of one stream go on by themselves
                part["logprobs"] = _appended(part.get("logprobs"), choice["logprobs"])
            for key in ENDS:
                if choice.get(key) is not None:
                    part[key] = choice[key]
        prompt, made = part.get("prompt_token_ids"), part.get("token_ids")
        self.part["usage"] = {} if made is None else {"completion_tokens": len(made)}
        if prompt is not None:
            self.part["usage"]["prompt_tokens"] = len(prompt)

    def kept(self) -> bytes:
        (event, chunk), kept = self._held, self._kept
        self._held, self._kept = (b"", {}), b""
        if not event or self._rollout.segments > 1:
            return kept
        choice = chunk["choices"][0]
        text = self._rollout.settled(self._text.shown + (choice.get("text") or ""))
        added = text[len(self._text.shown) :]
        self._text.shown += added
        return _told(self._stripped({**chunk, "choices": [{**_without_end(choice), "text": added}]}))

    async def _moved(self, chunk: Json, choice: Json) -> Json:
        """An event of a later segment as one of the first one's stream."""
        rollout, wire, part = self._rollout, self._wire, self.part or {}
        whole = rollout.whole or {}
        first = whole["choices"][0]
        moved = dict(chunk)
        choice = {**choice}
        if "prompt_token_ids" in choice:
            choice["prompt_token_ids"] = None
        if isinstance(choice.get("logprobs"), dict) and isinstance(first.get("logprobs"), dict):
            end = offset_after(first["logprobs"])
            offsets = choice["logprobs"].get("text_offset") or []
            choice["logprobs"] = {**choice["logprobs"], "text_offset": [at + end if at >= 0 else at for at in offsets]}
        shown = self._text.shown
        if choice.get("finish_reason") is not None:
            rollout.take(part)
            text = wire.text(await rollout.finished())
            moved["metadata"] = (rollout.whole or {}).get("metadata")
        else:
            part_ids = wire.ids(part) or []
            text = await self._text.grown(wire.text(whole), [*rollout.ids, *part_ids], part_ids, wire.text(part))
        choice["text"] = text[len(shown) :]
        moved["choices"] = [choice]
        return self._stripped(self._counted(moved))

    def _counted(self, chunk: Json) -> Json:
        usage, whole = chunk.get("usage"), self._rollout.whole or {}
        if not isinstance(usage, dict):
            return {**chunk, **head_of(whole)}
        told: Json = whole.get("usage") or {}
        is_over = self.part is not None and self._rollout.last_part is self.part
        usage = {**usage, **told} if is_over else joined_usage(told, usage)
        return {**chunk, **head_of(whole), "usage": usage}

    def _is_told(self, choice: Json) -> bool:
        return self._rollout.is_stripped and ("token_ids" in choice or "prompt_token_ids" in choice)

    def _stripped(self, chunk: Json) -> Json:
        if not self._rollout.is_stripped:
            return chunk
        choice = {key: value for key, value in chunk["choices"][0].items() if key not in STRIPPED}
        return {**chunk, "choices": [choice]}

    async def final(self) -> bytes:
        self.is_aborted = False
        rollout = self._rollout
        (event, chunk), kept = self._held, self._kept
        self._held, self._kept = (b"", {}), b""
        if rollout.whole is None:
            if rollout.is_changed:
                chunk["choices"][0]["finish_reason"] = (self.part or chunk)["choices"][0]["finish_reason"]
                return _event(self._stripped(chunk))
            return _event(self._stripped(chunk)) if self._is_told(chunk["choices"][0]) else event
        if self.part is not None and self.part is not rollout.last_part:
            rollout.take(self.part)
        whole = await rollout.finished()
        told = whole["choices"][0]
        ended = {key: told[key] for key in ENDS if key in told}
        choice = {"index": 0, "text": self._wire.text(whole)[len(self._text.shown) :], "logprobs": None, **ended}
        head = {**head_of(whole), "object": whole.get("object")}
        return kept + _event({**head, "choices": [choice], "metadata": whole.get("metadata")})


def _without_end(choice: Json) -> Json:
    return {key: None if key in ENDS else value for key, value in choice.items()}


def _told(chunk: Json) -> bytes:
    """An event, if there is anything in it."""
    choice = chunk["choices"][0]
    return _event(chunk) if choice.get("text") or choice.get("token_ids") or choice.get("logprobs") else b""


ENDS = ("finish_reason", "stop_reason", "matched_stop")
STRIPPED = frozenset(("token_ids", "prompt_token_ids"))


def _appended(first: Any, second: Json) -> Json:
    """Logprobs of one stream, one event behind the other."""
    if not isinstance(first, dict):
        return second
    without = {**second, "text_offset": []}
    joined: Json = joined_logprobs(first, without)
    joined["text_offset"] = [*(first.get("text_offset") or ()), *(second.get("text_offset") or ())]
    return joined


def _event(value: Json) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
