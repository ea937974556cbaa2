"""GLM-4.5's form: ``<tool_call>name`` and pairs of ``<arg_key>`` and ``<arg_value>``.

Values are text for parameters that are text by the tool's schema; else JSON where they can be read as such.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from .blocks import read_block
from .interface import ToolCall, function_of

START, END = "<tool_call>", "</tool_call>"
PAIR = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
OPEN_VALUE, CLOSED_VALUE = "<arg_value>", "</arg_value>"


class Glm4:
    """`ToolForm` of GLM-4.5 and its kin."""

    markers: Sequence[str] = (START,)

    def opens(self, text: str, tools: Sequence[Any]) -> bool | None:
        return False

    def read(self, text: str, tools: Sequence[Any], *, is_last: bool) -> tuple[list[ToolCall], int] | bool | None:
        return read_block(text, START, END, partial(_read, tools), is_last=is_last)


def _read(tools: Sequence[Any], inner: str) -> list[ToolCall] | bool | None:
    if inner.count(OPEN_VALUE) > inner.count(CLOSED_VALUE):
        return None  # this end marker stands in a value
    head, key, rest = inner.partition("<arg_key>")
    name, pairs = head.strip(), key + rest
    if not name or re.search(r"[\s<>{}]", name):
        return False
    kinds = _kinds(tools, name)
    arguments: dict[str, Any] = {}
    place = 0
    while place < len(pairs):
        found = PAIR.match(pairs, place)
        if found is None:
            return False
        key = found[1].strip()
        arguments[key] = found[2] if kinds.get(key) == "string" else _value(found[2])
        place = found.end()
    made = ToolCall.of(name, arguments)
    return [made] if made is not None else False


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _kinds(tools: Sequence[Any], name: str) -> dict[str, Any]:
    """Parameter -> its JSON type."""
    for tool in tools:
        function = function_of(tool)
        if function.get("name") == name:
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            if isinstance(properties, Mapping):
                return {key: value.get("type") for key, value in properties.items() if isinstance(value, Mapping)}
    return {}
