"""What the client already has of a message that another parser began, and what is still to be told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from router_tito.parsers import Delta, ToolCall


class ShownOtherwiseError(Exception):
    """The client was told something else than what the whole answer says."""


class Shown:
    """The beginning of a message, as its worker told it. White space before a text is nothing."""

    def __init__(self, message: Mapping[str, Any], reasoning_key: str, tokens: int) -> None:
        self.tokens = tokens
        """Tokens whose logprobs (and ids) were told."""
        self.delta: dict[str, Any] = {"role": "assistant"}
        self.calls: list[Mapping[str, Any]] = list(message.get("tool_calls") or ())
        self._texts: dict[str, str] = {}
        for key in (reasoning_key, "content"):
            self._texts[key] = str(message.get(key) or "").lstrip()
            self.delta[key] = message.get(key) or ""
        if self.calls:
            self.delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(self.calls)]
        self._reasoning_key = reasoning_key
        self._read_calls = 0

    def rest(self, added: Delta) -> tuple[Delta, list[dict[str, Any]]]:
        """Of what was added, what the client has not; the second value ends calls that it has the beginning of.

        Raises ShownOtherwiseError.
        """
        reasoning = self._rest_of(self._reasoning_key, added.reasoning)
        content = self._rest_of("content", added.content)
        ends, calls = [], []
        for call in added.calls:
            index, self._read_calls = self._read_calls, self._read_calls + 1
            if index >= len(self.calls):
                calls.append(call)
            elif end := _end_of(self.calls[index], call):
                ends.append({"index": index, "function": {"arguments": end}})
        return Delta(reasoning, content, tuple(calls)), ends

    def check(self) -> None:
        """All that was shown is in the whole answer. Raises ShownOtherwiseError."""
        if any(text.rstrip("\ufffd \n") for text in self._texts.values()) or self._read_calls < len(self.calls):
            raise ShownOtherwiseError

    def _rest_of(self, key: str, added: str) -> str:
        due = self._texts[key]
        if not due:
            return added
        if due == str(self.delta[key]).lstrip():
            added = added.lstrip()
        length = min(len(due), len(added))
        if due[:length] != added[:length]:
            raise ShownOtherwiseError
        self._texts[key] = due[length:]
        return added[length:]


def _end_of(shown: Mapping[str, Any], call: ToolCall) -> str:
    """What is missing of a call's arguments."""
    function = shown.get("function") or {}
    arguments = str(function.get("arguments") or "")
    if function.get("name") != call.name:
        raise ShownOtherwiseError
    if call.arguments.startswith(arguments):
        return call.arguments[len(arguments) :]
    try:
        if json.loads(arguments) == json.loads(call.arguments):
            return ""
    except json.JSONDecodeError:
        pass
    raise ShownOtherwiseError
