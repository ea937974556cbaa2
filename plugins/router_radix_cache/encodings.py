"""Texts that were encoded lately: siblings send one prompt many times, and it is encoded once."""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Encoded:
    """Ids and ends of one text."""

    ids: array[int]
    ends: array[int]


Encode = Callable[[str, bool], Awaitable[Encoded]]
"""Encodes a text; the second argument says whether it is the start of a prompt."""


class Encodings:
    """Encodes each text once, also when many ask for it at a time; ``max_bytes`` of texts and ids are remembered."""

    def __init__(self, encode: Encode, *, max_bytes: int) -> None:
        self._encode = encode
        self._max_bytes = max_bytes
        self._known: OrderedDict[tuple[str, bool], Encoded] = OrderedDict()
        self._running: dict[tuple[str, bool], asyncio.Future[Encoded]] = {}
        self._bytes = 0
        self.encoded_tokens = 0

    async def get(self, text: str, *, is_start: bool) -> Encoded:
        """Ids and ends of ``text``; what encoding it raises is raised to everyone who waits for it."""
        key = (text, is_start)
        if (known := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return known
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = asyncio.ensure_future(self._encode(text, is_start))
            running.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(running)  # one who leaves does not take it from the others

    def _keep(self, key: tuple[str, bool], done: asyncio.Future[Encoded]) -> None:
        del self._running[key]
        if done.cancelled() or done.exception() is not None:
            return
        self.encoded_tokens += len(done.result().ids)
        self._known[key] = done.result()
        self._bytes += _size(key, done.result())
        while self._bytes > self._max_bytes:
            self._bytes -= _size(*self._known.popitem(last=False))


def _size(key: tuple[str, bool], encoded: Encoded) -> int:
    return len(key[0]) + 8 * len(encoded.ids) + 256
