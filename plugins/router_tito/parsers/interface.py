"""What a parser gives and what a form of tool calls has to say."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One whole call; ``arguments`` is JSON text."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}", compare=False)

    @classmethod
    def of(cls, name: Any, arguments: Any) -> ToolCall | None:
        """A call of decoded values; None for what is no name or no object."""
        if not isinstance(name, str) or not name:
            return None
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, Mapping):
            return None
        return cls(name, json.dumps(arguments, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class Delta:
    """What a piece of text added."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)


class ToolForm(Protocol):
    """How a family of models writes tool calls. Stateless; ``tools`` are those of the request."""

    @property
    def markers(self) -> Sequence[str]:
        """Texts that open a block of calls, wherever they stand."""
        ...

    def opens(self, text: str, tools: Sequence[Any]) -> bool | None:
        """Whether an answer that begins with ``text`` is a call without any marker; None: it may become one."""
        ...

    def read(self, text: str, tools: Sequence[Any], *, is_last: bool) -> tuple[list[ToolCall], int] | bool | None:
        """The calls of the block that ``text`` begins with, marker included, and its length.

        False: it is none, whatever follows. None: more text is needed; never with ``is_last``.
        """
        ...


def tool_names(tools: Sequence[Any]) -> frozenset[str]:
    """Names of the functions that a request offers."""
    found = (function_of(tool).get("name") for tool in tools)
    return frozenset(name for name in found if isinstance(name, str))


def function_of(tool: Any) -> Mapping[str, Any]:
    """The function of one tool, empty where there is none."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    return function if isinstance(function, Mapping) else {}
