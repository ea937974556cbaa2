"""Finds the weight version in an answer as its bytes pass, without parsing it.

SGLang says ``"weight_version":"7"`` in ``meta_info``. A quote within a JSON text is escaped, so that these bytes cannot
be words of the model.
"""

from __future__ import annotations

import re

KEY = b'"weight_version"'
_TEXT = rb"[^\"\\\x00-\x1f\x7f-\xff]"
_VALUE = re.compile(rb"\s{0,8}:\s{0,8}(?:\"(%b{1,128})\"|([0-9]{1,32})(?=[\s,}]))" % _TEXT)
_BEGUN_VALUE = re.compile(rb"\s{0,8}(?::\s{0,8}(?:\"%b{0,128}|[0-9]{0,32})?)?" % _TEXT)
"""What may become a value with the next bytes."""


class VersionScanner:
    """Takes the pieces of one answer in order; looks at ``max_bytes`` of it at most."""

    __slots__ = ("_left", "_tail")

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._tail = b""

    @property
    def is_done(self) -> bool:
        """Whether it will look at no more."""
        return self._left <= 0

    def feed(self, piece: bytes) -> str | None:
        """The first version that is whole within what has come, or None."""
        if self._left <= 0:
            return None
        looked_at = self._tail + piece[: self._left]
        self._left -= len(piece)
        end, at = len(looked_at), looked_at.find(KEY)
        while at >= 0:
            value = _VALUE.match(looked_at, at + len(KEY))
            if value is not None:
                return (value[1] or value[2]).decode()
            if _BEGUN_VALUE.fullmatch(looked_at, at + len(KEY)):
                break
            at = looked_at.find(KEY, at + len(KEY))
        self._tail = looked_at[at if at >= 0 else max(0, end - len(KEY) + 1) :]
        return None
