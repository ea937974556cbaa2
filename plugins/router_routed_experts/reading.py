"""Reads an answer while it passes: routed experts are decoded as they come, of the rest only what counts is kept."""

from __future__ import annotations

import re
from dataclasses import dataclass

import orjson

from router_core import ValueScanner
from router_routed_experts.asking import CHAT, GENERATE
from router_routed_experts.codecs import RAW_DTYPES, Decoded, decode_found, open_decoder
from router_routed_experts.gathered import Choice, Gathered
from router_routed_experts.places import FIELD, Place
from router_routed_experts.reasons import Reason, RowsError

KEY = FIELD.encode()
EVENT_END = b"\n\n"
UNFINISHED = b'"finish_reason":null'
ESCAPED_NAME = re.compile(rb'(?<!\\)"([\w\\]*\\u00[\w\\]*)"\s*:')
CHAT_MARKS = (b'"sglext"', b'"usage":{', b'"routed_experts"', b'"finish_reason":"abort"')


@dataclass(slots=True)
class Part:
    """One choice of an answer: its key, what is known of its tokens, and its routed experts (None: there are none)."""

    key: str
    choice: Choice
    decoded: Decoded | RowsError | None


class AnswerReader:
    """Takes the chunks of one answer to ``target``; ``finish`` gives its parts. Memory: the ids, and ``max_bytes``."""

    def __init__(self, target: str, *, is_stream: bool, max_bytes: int, expected_bytes: int = 0) -> None:
        self._target = target
        self._is_stream = is_stream
        self._max_bytes = max_bytes
        self._expected_bytes = expected_bytes
        self._scanner: ValueScanner | None = None
        self._pieces: list[bytes | memoryview] = []
        self._size = 0
        self._gathered = Gathered()
        self._fault: RowsError | None = None
        self._has_begun = False  # an event was read, so that the answer's id is known
        self.bytes_fed = 0

    def feed(self, chunk: bytes) -> None:
        """Read on; the chunk itself is not kept by a stream."""
        if not self.bytes_fed and not self._is_stream and len(chunk) == self._expected_bytes and KEY not in chunk:
            pieces: list[bytes | memoryview] = [chunk]  # the whole answer, and nothing in it to look for
        else:
            if self._scanner is None:
                decoder = open_decoder(RAW_DTYPES["sglang"], self._expected_bytes)
                self._scanner = ValueScanner(KEY, open_sink=decoder)
            self._scanner.feed(chunk)
            pieces = self._scanner.drain()
        self.bytes_fed += len(chunk)
        if self._fault is None:
            self._pieces += pieces
            self._size += sum(map(len, pieces))
        if self._is_stream and b"\n" in chunk:
            self._take_events()
        if self._size > self._max_bytes:
            self._pieces.clear()
            self._size = 0
            self._fault = RowsError(Reason.UNREADABLE, f"more than {self._max_bytes} bytes beside routed experts")

    def finish(self, fallback_key: str) -> list[Part]:
        """The parts of the whole answer, by choice; at least one. Raises ``RowsError`` when it cannot be read.

        CPU work of some milliseconds for a large answer: for a thread.
        """
        if not self._is_stream and self._fault is None:
            self._absorb(b"".join(self._pieces))
        if self._fault is not None:
            raise self._fault
        gathered = self._gathered
        gathered.settle()
        if not gathered.choices:
            gathered.choices[0] = Choice()
        parts: dict[str, Part] = {}
        for index, choice in sorted(gathered.choices.items()):
            key = choice.rid or gathered.id or fallback_key
            if key in parts or (choice.rid is None and index):
                key = f"{key}_{index}"
            parts[key] = Part(key, choice, None if choice.place is None else self._decoded(choice.place))
        return list(parts.values())

    @property
    def id(self) -> str | None:
        """The answer's id as far as it came."""
        rids = (choice.rid for choice in self._gathered.choices.values())
        return self._gathered.id or next(rids, None)

    def _decoded(self, place: Place) -> Decoded | RowsError | None:
        if place.value_index is None or self._scanner is None:
            return None
        is_sglang = "meta_info" in place.path or "sglext" in place.path
        try:
            found = self._scanner.values[place.value_index]
            return decode_found(found, RAW_DTYPES["sglang"] if is_sglang else None, place.dtype)
        except RowsError as error:
            return error

    def _take_events(self) -> None:
        *events, rest = b"".join(self._pieces).split(EVENT_END)
        self._pieces, self._size = [rest], len(rest)
        for event in events:
            data = b"".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
            if data and data != b"[DONE]" and (not self._has_begun or self._counts(data)):
                self._has_begun = True
                self._absorb(data)

    def _counts(self, event: bytes) -> bool:
        """Whether an event says something of routed experts or of how many tokens there are."""
        if self._target == GENERATE:  # cumulative: the last one of each choice says all
            return UNFINISHED not in event
        return self._target != CHAT or any(mark in event for mark in CHAT_MARKS)

    def _absorb(self, body: bytes) -> None:
        try:
            if b"\\u00" in body and has_escaped_name(body):
                self._fault = RowsError(Reason.UNREADABLE, f"the name {FIELD} is spelt with escapes")
            else:
                self._gathered.absorb(orjson.loads(body), has_places=self._scanner is not None)
        except orjson.JSONDecodeError as error:
            self._fault = RowsError(Reason.UNREADABLE, f"the answer is no JSON: {error}")


def has_escaped_name(body: bytes) -> bool:
    """Whether JSON spells the field's name as the scanner does not see it: its value would be taken for another's."""
    return any(orjson.loads(b'"%b"' % found[1]) == FIELD for found in ESCAPED_NAME.finditer(body))
