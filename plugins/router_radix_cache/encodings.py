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
        self._running: dict[tuple[str, bool], asyncio.Future[Encoded | None]] = {}
        self._bytes = 0
        self.encoded_tokens = 0

    async def get(self, text: str, *, is_start: bool) -> Encoded:
        """Ids and ends of ``text``. The first to ask encodes it for all; if it gives up, the next one does."""
        key = (text, is_start)
        while (running := self._running.get(key)) is not None:
            found = await asyncio.shield(running)  # one who leaves does not take it from the others
            if found is not None:
                return found
        if (known := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return known
        running = self._running[key] = asyncio.get_running_loop().create_future()
        made: list[Encoded] = []
        try:
            made.append(await self._encode(text, is_start))
        finally:
            del self._running[key]
            running.set_result(made[0] if made else None)
        self._keep(key, made[0])
        return made[0]

    def _keep(self, key: tuple[str, bool], encoded: Encoded) -> None:
        self.encoded_tokens += len(encoded.ids)
        self._known[key] = encoded
        self._bytes += _size(key, encoded)
        while self._bytes > self._max_bytes:
            self._bytes -= _size(*self._known.popitem(last=False))


def _size(key: tuple[str, bool], encoded: Encoded) -> int:
    return len(key[0]) + 8 * len(encoded.ids) + 256
