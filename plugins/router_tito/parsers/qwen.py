"""Qwen's and Hermes' form: ``<tool_call>`` around ``{"name": ..., "arguments": {...}}``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .blocks import read_block
from .interface import ToolCall

START, END = "<tool_call>", "</tool_call>"


class Qwen:
    """`ToolForm` of Qwen 2.5, Qwen3 and Hermes."""

    markers: Sequence[str] = (START,)

    def opens(self, text: str, tools: Sequence[Any]) -> bool | None:
        return False

    def read(self, text: str, tools: Sequence[Any], *, is_last: bool) -> tuple[list[ToolCall], int] | bool | None:
        return read_block(text, START, END, _read, is_last=is_last)


def _read(inner: str) -> list[ToolCall] | bool | None:
    """None: an end marker inside a JSON string is none."""
    try:
        call = json.loads(inner, strict=False)
    except json.JSONDecodeError as error:
        return None if error.msg.startswith("Unterminated string") else False
    except RecursionError:
        return False
    made = ToolCall.of(call.get("name"), call.get("arguments")) if isinstance(call, dict) else None
    return [made] if made is not None else False
