"""Reads answers of ``/v1/chat/completions``: what both kinds of worker have in common.

A worker's event or body is decoded once; what was added for capture is taken out, and only what was changed thereby is
encoded again. Bytes that nothing was taken from pass as they came.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any, TypeAlias, TypeGuard

import orjson

from router_core import EventSplitter, event_data

from .cut import cut_ids, cut_logprobs
from .deltas import MessageBuilder
from .interface import Ask, Reading

Json: TypeAlias = dict[str, Any]

DONE = b"[DONE]"
HEAD = ("id", "created", "model")
IDENTITY = frozenset({"id", "object", "created", "model", "choices", "system_fingerprint", "service_tier"})
"""Keys of an event that every event of its stream has."""


class ChatReader(ABC):
    """`AnswerReader` for chat answers; a kind of worker says where it puts ids and what it adds."""

    prompt_key: bytes
    """Key of the prompt's ids in an answer."""
    prompt_flag: str
    """The client's key that asks to see them."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.reading = Reading()
        self._splitter = EventSplitter()
        self._message = MessageBuilder()
        self._ids: list[int] = []
        self._logprobs: list[float | None] = []
        self._held: list[bytes] = []
        self._is_ending = False
        self.head: Json = {}
        """``id``, ``created`` and ``model`` as the first event, or the answer, has them."""

    # ------------------------------------------------------------------------------------------- what a kind differs in
    @abstractmethod
    def take(self, answer: Json, choice: Json | None) -> bool:
        """Read what this kind adds to an answer or event into `reading`, and take out of it what is not the client's.

        Returns whether anything was taken out. ``choice`` is the only one there, None in an event without.
        """

    @staticmethod
    def is_empty(answer: Json, choice: Json | None) -> bool:
        """Whether an event that something was taken from has nothing left to say."""
        if choice is not None:
            if any(_delta(choice).values()):
                return False
            if any(value is not None for key, value in choice.items() if key not in ("index", "delta")):
                return False
        return all(value is None for key, value in answer.items() if key not in IDENTITY)

    @property
    def message(self) -> Json:
        """What has been said so far, of a stream."""
        return self._message.message()

    @property
    def told_tokens(self) -> int:
        """Of how many tokens the logprobs came so far."""
        return len(self._logprobs)

    # ------------------------------------------------------------------------------------------------- AnswerReader
    async def whole(self, body: bytes) -> bytes:
        cut = None if self.ask.asks("logprobs") else cut_logprobs(body)
        rest = body
        if cut is not None:
            rest, self._logprobs = cut
        rest = self._without_prompt(rest)
        answer = _decode(rest)
        if answer is None:
            self.reading.fault = "unreadable_answer"
            return body
        choice = self._only_choice(answer)
        if choice is None:
            self.reading.fault = self.reading.fault or "unreadable_answer"
            return rest
        message = choice.get("message")
        self.reading.message = dict(message) if isinstance(message, dict) else {}
        is_changed = self._read(answer, choice)
        self._finish()
        return _encode(answer) if is_changed else rest

    async def feed(self, chunk: bytes) -> bytes:
        try:
            events = self._splitter.feed(chunk)
        except ValueError:
            self.reading.fault = "unreadable_answer"
            return chunk
        passing: list[bytes] = []
        for event in events:
            told = self._read_event(event)
            (self._held if self._is_ending else passing).append(told)
        return b"".join(passing)

    async def end(self) -> bytes:
        self.reading.message = self._message.message()
        self._finish()
        return b"".join([*self._held, self._splitter.rest()])

    # ------------------------------------------------------------------------------------------------------- reading
    def _read_event(self, event: bytes) -> bytes:
        event = self._without_prompt(event)
        is_plain = event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2
        data = event[6:-2] if is_plain else event_data(event)
        if data is None:
            return event
        if data == DONE:
            self._is_ending = True
            return event
        answer = _decode(data)
        if answer is None:
            self.reading.fault = "unreadable_answer"
            return event
        if answer.get("error") is not None:
            self.reading.fault = "worker_error"
        choice = self._only_choice(answer)
        if choice is not None:
            self._message.add(_delta(choice))
            if choice.get("finish_reason") is not None:
                self._is_ending = True
        if not self._read(answer, choice):
            return event
        return b"" if self.is_empty(answer, choice) else b"data: " + _encode(answer) + b"\n\n"

    def _read(self, answer: Json, choice: Json | None) -> bool:
        reading = self.reading
        self.head = self.head or {key: answer[key] for key in HEAD if key in answer}
        if not reading.model and isinstance(answer.get("model"), str):
            reading.model = answer["model"]
        if usage := answer.get("usage"):
            details = _dict(_dict(usage).get("prompt_tokens_details"))
            if isinstance(details.get("cached_tokens"), int):
                reading.cached_tokens = details["cached_tokens"]
        if choice is not None and choice.get("finish_reason") is not None:
            reading.finish_reason = str(choice["finish_reason"])
        is_changed = self._take_logprobs(choice) if choice is not None else False
        return self.take(answer, choice) or is_changed

    def _without_prompt(self, text: bytes) -> bytes:
        """An answer or event without the prompt's ids, where they are the given ones and not for the client to see."""
        ask = self.ask
        if ask.prompt_ids is None or self.reading.prompt_ids is not None or ask.asks(self.prompt_flag):
            return text
        rest = cut_ids(text, self.prompt_key, ask.prompt_json)
        if rest is None:
            return text
        self.reading.prompt_ids = ask.prompt_ids
        return rest

    def _take_logprobs(self, choice: Json) -> bool:
        told = choice.get("logprobs")
        if not told:
            return False
        content = _dict(told).get("content")
        if isinstance(content, list):
            self._logprobs += [_dict(entry).get("logprob") for entry in content]
        return not self.ask.asks("logprobs") and blank(choice, "logprobs")

    def _only_choice(self, answer: Json) -> Json | None:
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return None
        if len(choices) > 1 or choices[0].get("index", 0) != 0:
            self.reading.fault = "many_choices"
        return choices[0]

    def _finish(self) -> None:
        if self._ids:
            self.reading.completion_ids = self._ids
        if self._logprobs:
            self.reading.logprobs = self._logprobs


def blank(holder: Json, key: str) -> bool:
    """Set a field to null, as a worker leaves one that nobody asked for; whether it held anything."""
    if holder.get(key) is None:
        return False
    holder[key] = None
    return True


def are_ids(value: Any) -> TypeGuard[list[int]]:
    """Whether a value from a worker looks like a list of ids; commit checks each."""
    return isinstance(value, list) and (not value or isinstance(value[0], int))


def _delta(choice: Json) -> Json:
    return _dict(choice.get("delta"))


def _dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _decode(text: bytes) -> Json | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            value = json.loads(text)  # NaN, lone surrogates: engines do send them
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def _encode(value: Json) -> bytes:
    try:
        text = orjson.dumps(value)
    except (orjson.JSONEncodeError, TypeError):
        return json.dumps(value).encode()
    return text
