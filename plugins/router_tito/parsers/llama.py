"""Llama 3.1's form: the whole answer is ``{"name": ..., "parameters": {...}}``, or that stands behind a tag.

Several calls are parted by ``;``. Built-in tools, written as Python behind the tag, stay content.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .interface import ToolCall, tool_names

TAG = "<|python_tag|>"
KEYS = ('"name"', '"type"', '"function"', '"parameters"', '"arguments"')
"""What a call's object may begin with."""
DECODER = json.JSONDecoder(strict=False)


class Llama3:
    """`ToolForm` of Llama 3.1, 3.2 and 3.3."""

    markers: Sequence[str] = (TAG,)

    def opens(self, text: str, tools: Sequence[Any]) -> bool | None:
        if not text:
            return None
        if not text.startswith("{"):
            return False
        first = text[1:].lstrip()
        if any(first.startswith(key) for key in KEYS):
            return True
        return None if any(key.startswith(first) for key in KEYS) else False

    def read(self, text: str, tools: Sequence[Any], *, is_last: bool) -> tuple[list[ToolCall], int] | bool | None:
        is_tagged = text.startswith(TAG)
        place = _skip(text, len(TAG) if is_tagged else 0)
        if place < len(text) and text[place] != "{":
            return False
        if not is_last:
            return None if _may_go_on(text[place:]) else False
        names = frozenset() if is_tagged else tool_names(tools)
        calls: list[ToolCall] = []
        while place < len(text):
            try:
                value, place = DECODER.raw_decode(text, place)
            except (ValueError, RecursionError):
                return False
            call = _read(value)
            if call is None or (names and call.name not in names):
                return False
            calls.append(call)
            place = _skip(text, place, ";,")
        return (calls, len(text)) if calls else False


def _read(value: Any) -> ToolCall | None:
    if not isinstance(value, dict):
        return None
    key = "parameters" if "parameters" in value else "arguments"
    return ToolCall.of(value.get("name"), value[key]) if key in value else None


def _may_go_on(text: str) -> bool:
    """Whether what follows may make calls of it: it is a sequence of such objects as far as it goes."""
    place = 0
    while place < len(text):
        try:
            value, place = DECODER.raw_decode(text, place)
        except json.JSONDecodeError as error:
            # Text that ends in the middle of a value fails at its end, or in a string that has not ended.
            return (
                error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string") or _is_cut(text, error)
            )
        except (ValueError, RecursionError):
            return False
        if _read(value) is None:
            return False
        place = _skip(text, place, ";,")
    return True


def _is_cut(text: str, error: json.JSONDecodeError) -> bool:
    """Whether the fault is a literal, a number or an escape that ends with the text."""
    return len(text) - error.pos < 12


def _skip(text: str, place: int, others: str = "") -> int:
    while place < len(text) and (text[place].isspace() or text[place] in others):
        place += 1
    return place
