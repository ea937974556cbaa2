"""Puts a streamed assistant message together again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class MessageBuilder:
    """Adds up the deltas of one choice: texts grow, tool calls by their index, anything else as last said."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._others: dict[str, Any] = {}
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, delta: Mapping[str, Any]) -> None:
        """One delta; null says nothing."""
        for key, value in delta.items():
            if key == "tool_calls" and isinstance(value, list):
                for call in value:
                    self._add_call(call)
            elif isinstance(value, str) and key != "role":
                self._texts.setdefault(key, []).append(value)
            elif value is not None:
                self._others[key] = value

    def message(self) -> dict[str, Any]:
        """The message so far."""
        message: dict[str, Any] = {"role": "assistant", **self._others}
        message |= {key: "".join(texts) for key, texts in self._texts.items()}
        if self._calls:
            message["tool_calls"] = [_whole_call(self._calls[index]) for index in sorted(self._calls)]
        return message

    def _add_call(self, call: Any) -> None:
        if not isinstance(call, Mapping):
            return
        index = call.get("index")
        known = self._calls.setdefault(index if isinstance(index, int) else 0, {"function": {}, "arguments": []})
        for key in ("id", "type"):
            if call.get(key):
                known[key] = call[key]
        function = call.get("function")
        if isinstance(function, Mapping):
            if function.get("name"):
                known["function"]["name"] = known["function"].get("name", "") + str(function["name"])
            if isinstance(function.get("arguments"), str):
                known["arguments"].append(function["arguments"])


def _whole_call(parts: dict[str, Any]) -> dict[str, Any]:
    function = {**parts["function"], "arguments": "".join(parts["arguments"])}
    return {
        **{key: parts[key] for key in ("id", "type") if key in parts},
        "type": parts.get("type", "function"),
        "function": function,
    }
