"""DeepSeek-V3's form, and V3.1's: a block of calls between control tokens.

V3 and R1 write ``function<sep>NAME``, a fence of JSON and the end; V3.1 writes ``NAME<sep>{...}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from .interface import ToolCall

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCED = re.compile(r"(?P<name>[^\n]+)\n```(?:json)?\n(?P<arguments>.*)\n```\s*", re.DOTALL)


class DeepSeekV3:
    """`ToolForm` of DeepSeek-V3, R1 and V3.1."""

    markers: Sequence[str] = (BEGIN,)

    def opens(self, text: str, tools: Sequence[Any]) -> bool | None:
        return False

    def read(self, text: str, tools: Sequence[Any], *, is_last: bool) -> tuple[list[ToolCall], int] | bool | None:
        calls: list[ToolCall] = []
        place = len(BEGIN)
        while True:
            place = _skip(text, place)
            if text.startswith(END, place):
                return (calls, place + len(END)) if calls else False
            if not text.startswith(CALL_BEGIN, place):
                rest = text[place:]
                if not is_last and (CALL_BEGIN.startswith(rest) or END.startswith(rest)):
                    return None
                # A model may end its turn behind a whole call.
                return (calls, place) if calls else False
            found = _next_call(text, place)
            if found is None:
                return None if not is_last else (calls, place) if calls else False
            if isinstance(found, bool):
                return (calls, place) if calls else False
            call, place = found
            calls.append(call)


def _next_call(text: str, start: int) -> tuple[ToolCall, int] | bool | None:
    start += len(CALL_BEGIN)
    place = text.find(CALL_END, start)
    if place < 0:
        return None
    head, separator, rest = text[start:place].partition(SEPARATOR)
    if not separator:
        return False
    if head.strip() == "function" and (fenced := FENCED.fullmatch(rest)) is not None:
        name, arguments = fenced["name"], fenced["arguments"]
    else:
        name, arguments = head, rest
    try:
        call = ToolCall.of(name.strip(), json.loads(arguments, strict=False))
    except (ValueError, RecursionError):
        return False
    return (call, place + len(CALL_END)) if call is not None else False


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place
