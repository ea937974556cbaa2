"""Reads an answer of a call that generates from ids, and writes the chat answer that the client asked for."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import orjson

from router_core import EventSplitter, event_data
from router_tito.parsers import AnswerParser, Delta

from .chat_writer import DONE_EVENT, ChatWriter, logprob_entry, usage
from .cut import cut_ids
from .deltas import MessageBuilder
from .interface import Ask, Reading
from .shown import Shown, ShownOtherwiseError
from .translate_parsing import Parsing
from .translate_request import top_logprobs

Json: TypeAlias = dict[str, Any]

DONE = b"[DONE]"
SHOWN_OTHERWISE = "shown_otherwise"
PROMPT_KEY = b"prompt_token_ids"


@dataclass(frozen=True, slots=True)
class Piece:
    """What an answer, or one event of it, added."""

    text: str = ""
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float | None] = ()
    """One per token id, or none at all."""
    tops: Sequence[Sequence[tuple[int, float | None]]] = ()
    """(id, logprob) of the likeliest tokens at each position, or none at all."""
    finish_reason: str | None = None
    matched: Any = None
    """What the answer was stopped by, if it is no end of a turn."""


class TranslatedReader(ABC):
    """`AnswerReader` whose text and tool calls are parsed here; a kind of worker says how its answers are read."""

    def __init__(self, ask: Ask, parsing: Parsing, *, reasoning_key: str, stop_key: str) -> None:
        self.ask = ask
        self.reading = Reading(model=str(ask.body.get("model") or ""))
        self.writer = ChatWriter(self.reading.model, reasoning_key, stop_key)
        self._parsing = parsing
        self._parser = parsing.parser(ask)
        self._shown = (parsing.visible(ask), parsing.visible(ask))
        self._splitter = EventSplitter()
        self._message = MessageBuilder()
        self._ids: list[int] = []
        self._logprobs: list[float | None] = []
        self._ended: Piece | None = None
        self._is_begun = False
        self._is_done = False
        self._broken: list[bytes] = []
        self._had: Shown | None = None

    def go_on(self, parser: AnswerParser, head: Json, had: Shown | None) -> None:
        """The answer was begun in another call, and comes here from its beginning: ``had`` is what its client has.

        None: it has nothing.
        """
        self._parser = parser
        self.writer.id = str(head.get("id") or "")
        self.writer.created = head.get("created") or self.writer.created
        self.writer.model = self.reading.model = str(head.get("model") or self.writer.model)
        self._had, self._is_begun = had, had is not None
        if had is not None:
            self.writer.calls = len(had.calls)
            self._message.add(had.delta)

    # ------------------------------------------------------------------------------------------- what a kind differs in
    @abstractmethod
    def take(self, answer: Json) -> Piece:
        """What a whole answer or an event adds; the rest of what it tells goes into `reading`."""

    def beside_answer(self) -> Json:
        """What the client asked to see beside the choice."""
        return {}

    def beside_choice(self, piece: Piece) -> Json:
        """What the client asked to see in the choice."""
        return {}

    # ------------------------------------------------------------------------------------------------- AnswerReader
    async def whole(self, body: bytes) -> bytes:
        answer = _decode(self._without_prompt(body))
        if answer is None:
            self.reading.fault = "unreadable_answer"
            return body
        piece = self._add(answer)
        parsed = self._visible(_joined(self._parser.feed(piece.text), self._parser.end()), is_last=True)
        message = self.writer.message(parsed)
        reason = self.writer.finish_reason(piece.finish_reason or "")
        self.reading.message, self.reading.finish_reason = message, reason
        self._finish()
        choice = {
            "message": message,
            "logprobs": self._told_logprobs(piece),
            "finish_reason": reason or None,
            self.writer.stop_key: piece.matched,
            **self.beside_choice(piece),
        }
        return self.writer.answer(choice, self._usage(), self.beside_answer())

    async def feed(self, chunk: bytes) -> bytes:
        try:
            events = self._splitter.feed(chunk)
        except ValueError:
            self.reading.fault = "unreadable_answer"
            return b""
        return b"".join([self._read_event(event) for event in events])

    async def end(self) -> bytes:
        rest = self._chunk(self._visible(self._parser.end(), is_last=True), Piece()) if self._is_begun else b""
        if self._had is not None and not self._broken:
            try:
                self._had.check()
            except ShownOtherwiseError:
                self._break_off()
        ended = self._ended
        if ended is not None:
            reason = self.writer.finish_reason(ended.finish_reason or "")
            self.reading.finish_reason = reason
            stop = {self.writer.stop_key: ended.matched}
            rest += self.writer.chunk({}, finish_reason=reason, **stop)
            if beside := self.beside_answer():
                rest += self.writer.tail(**beside)
            if (self.ask.body.get("stream_options") or {}).get("include_usage"):
                rest += self.writer.tail(usage=self._usage())
        self.reading.message = self._message.message()
        self._finish()
        return b"".join([rest, *self._broken, DONE_EVENT if self._is_done else b""])

    # ------------------------------------------------------------------------------------------------------- reading
    def _without_prompt(self, text: bytes) -> bytes:
        """An answer or event without the prompt's ids, where they are the given ones."""
        rest = cut_ids(text, PROMPT_KEY, self.ask.prompt_json)
        if rest is None:
            return text
        self.reading.prompt_ids = self.ask.prompt_ids
        return rest

    def _read_event(self, event: bytes) -> bytes:
        data = event_data(event)
        if data is None:
            return event  # a comment keeps the connection alive
        if data == DONE:
            self._is_done = True
            return b""
        answer = _decode(self._without_prompt(data))
        if answer is None:
            self.reading.fault = "unreadable_answer"
            return b""
        if answer.get("error") is not None:
            self.reading.fault = "worker_error"
            self._broken.append(event)
            return b""
        piece = self._add(answer)
        opening = b"" if self._is_begun else self._open()
        if piece.finish_reason is not None:
            self._ended = piece
        return opening + self._chunk(self._visible(self._parser.feed(piece.text)), piece)

    def _open(self) -> bytes:
        self._is_begun = True
        delta = {"role": "assistant", "content": ""}
        self._message.add(delta)
        return self.writer.chunk(delta)

    def _chunk(self, parsed: Delta, piece: Piece) -> bytes:
        """The event for what came, "" if it tells nothing."""
        if self._broken:
            return b""
        ends: list[Json] = []
        if self._had is not None:
            try:
                parsed, ends = self._had.rest(parsed)
            except ShownOtherwiseError:
                self._break_off()
                return b""
            piece, self._had.tokens = _behind(piece, self._had.tokens)
        delta = self.writer.delta(parsed)
        if ends:
            delta["tool_calls"] = [*ends, *delta.get("tool_calls", ())]
        self._message.add(delta)
        logprobs = self._told_logprobs(piece) if piece.token_ids else None
        beside = self.beside_choice(piece) if piece.token_ids else {}
        if not delta and not logprobs and not beside:
            return b""
        return self.writer.chunk(delta, logprobs=logprobs, **beside)

    def _break_off(self) -> None:
        self.reading.fault = SHOWN_OTHERWISE
        told = "what the worker said of the beginning is not what the whole answer says"
        error = {"message": told, "type": "server_error", "code": SHOWN_OTHERWISE}
        self._broken.append(b"data: " + orjson.dumps({"error": error}) + b"\n\n")
        self._ended = None

    def _add(self, answer: Json) -> Piece:
        piece = self.take(answer)
        self._ids += piece.token_ids
        self._logprobs += piece.logprobs
        return piece

    def _visible(self, parsed: Delta, *, is_last: bool = False) -> Delta:
        thought, content = self._shown
        reasoning, said = thought.feed(parsed.reasoning), content.feed(parsed.content)
        if is_last:
            reasoning, said = reasoning + thought.end(), said + content.end()
        return Delta(reasoning, said, parsed.calls)

    def _told_logprobs(self, piece: Piece) -> Json | None:
        """In chat form, if the client asked."""
        if not self.ask.asks("logprobs") or len(piece.logprobs) != len(piece.token_ids):
            return None
        most, text = top_logprobs(self.ask.body), self._parsing.token_text
        tops = piece.tops or [()] * len(piece.token_ids)
        return {
            "content": [
                logprob_entry(text(token_id), logprob, [(text(other), told) for other, told in likeliest[:most]])
                for token_id, logprob, likeliest in zip(piece.token_ids, piece.logprobs, tops, strict=False)
            ]
        }

    def _usage(self) -> Json:
        return usage(len(self.ask.prompt_ids or ()), len(self._ids), self.reading.cached_tokens)

    def _finish(self) -> None:
        if self._ids:
            self.reading.completion_ids = self._ids
        if self._logprobs:
            self.reading.logprobs = self._logprobs


def _behind(piece: Piece, count: int) -> tuple[Piece, int]:
    """The piece without its first ``count`` tokens, and how many are still to go."""
    gone = min(count, len(piece.token_ids))
    if not gone:
        return piece, count
    rest = replace(
        piece, token_ids=piece.token_ids[gone:], logprobs=piece.logprobs[gone:], tops=list(piece.tops)[gone:]
    )
    return rest, count - gone


def _joined(first: Delta, second: Delta) -> Delta:
    return Delta(first.reasoning + second.reasoning, first.content + second.content, (*first.calls, *second.calls))


def _decode(text: bytes) -> Json | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            value = json.loads(text)  # NaN: engines do send it
        except ValueError:
            return None
    return value if isinstance(value, dict) else None
