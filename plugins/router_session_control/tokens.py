"""How many tokens an answer says it was made of, found in its bytes as they pass. Knows no HTTP."""

from __future__ import annotations

import re

_COUNT = re.compile(rb'"(prompt|completion)_tokens"[ \t\r\n]*:[ \t\r\n]*(\d{1,9})(?=[^\d])')
_CARRY = 48
_EDGE = 64 * 1024
"""Bytes at both ends of a chunk that are looked through: counts stand before or behind what is large."""


class TokenCounts:
    """The newest counts of one answer; None until it told them."""

    __slots__ = ("_carry", "completion", "prompt")

    def __init__(self) -> None:
        self.prompt: int | None = None
        self.completion: int | None = None
        self._carry = b""

    def feed(self, chunk: bytes) -> None:
        parts = (chunk,) if len(chunk) <= 2 * _EDGE else (chunk[:_EDGE], chunk[-_EDGE:])
        for part in parts:
            self._look(self._carry + part)
            self._carry = part[-_CARRY:]

    def _look(self, text: bytes) -> None:
        for name, count in _COUNT.findall(text):
            if name == b"prompt":
                self.prompt = int(count)
            else:
                self.completion = int(count)
