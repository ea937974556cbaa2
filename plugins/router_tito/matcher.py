"""Which messages are the same: the key under which the trace stores one, and what a client may change in it.

Built in: ``strict`` (the plain form of canonical.py, nothing more), ``loose_tool_call`` (tool arguments as JSON
values), ``reasoning_optional`` (a client may send an assistant message back without its reasoning). Matchers combine;
a dotted path (``package.module:function``) names an own one: canonical message in, canonical message out.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeAlias

from .canonical import canonical_json, canonical_message, parse_json
from .errors import MessageError

Canonicaliser: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

STRICT = "strict"
LOOSE_TOOL_CALL = "loose_tool_call"
REASONING_OPTIONAL = "reasoning_optional"
BUILT_IN = (STRICT, LOOSE_TOOL_CALL, REASONING_OPTIONAL)
DEFAULT = (LOOSE_TOOL_CALL,)

_INLINE_THINKING = re.compile(r"\A\s*<think>(.*?)</think>", re.DOTALL)


def digest(text: str) -> bytes:
    """16 bytes of BLAKE2b over the ASCII text of ``canonical_json``: the same on every machine and run."""
    return blake2b(text.encode("ascii"), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class MessageKey:
    """Identity of a message: ``hash``, and beside it the reasoning's when that is optional (else empty)."""

    hash: bytes
    reasoning: bytes = b""

    def accepts(self, stored: MessageKey) -> bool:
        """Whether a client's message with this key may stand for the stored one: reasoning left out or the same."""
        return self.hash == stored.hash and self.reasoning in (b"", stored.reasoning)


def _loose_arguments(arguments: Any) -> list[Any]:
    """``["json", value]`` when the text has one JSON value, else ``["text", text]``: bad JSON equals only itself."""
    if not isinstance(arguments, str):
        return ["json", arguments]
    try:
        return ["json", parse_json(arguments)]
    except (ValueError, RecursionError):
        return ["text", arguments]


def _strict_arguments(arguments: Any) -> list[Any]:
    return ["text" if isinstance(arguments, str) else "json", arguments]


def _without_reasoning(message: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The assistant message with its reasoning, parsed or inline in ``<think>`` tags, taken out and given beside it."""
    rest = dict(message)
    reasoning = rest.pop("reasoning", "")
    content = rest.get("content")
    if isinstance(content, str):
        inline = _INLINE_THINKING.match(content)
        if inline and not reasoning:
            reasoning, content = inline.group(1), content[inline.end() :]
        rest["content"] = content.lstrip()
        if not rest["content"]:
            del rest["content"]
    return rest, reasoning.strip() if isinstance(reasoning, str) else reasoning


def _load(path: str) -> Canonicaliser:
    module_name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise MessageError(f"matcher {path!r} cannot be imported: {error}") from error
    if not callable(found):
        raise MessageError(f"matcher {path!r} is not callable")
    return found  # type: ignore[no-any-return]  # checked to be callable; its types are its author's


class Matcher:
    """Gives messages and render contexts their keys, under a combined list of matchers."""

    def __init__(self, matchers: Sequence[str] = DEFAULT) -> None:
        for name in matchers:
            if name not in BUILT_IN and "." not in name and ":" not in name:
                raise MessageError(f"unknown matcher {name!r}: one of {', '.join(BUILT_IN)} or a dotted path")
        self.names = tuple(matchers)
        self._loose = LOOSE_TOOL_CALL in self.names
        self._reasoning_optional = REASONING_OPTIONAL in self.names
        self._own = tuple(_load(name) for name in self.names if name not in BUILT_IN)

    def key(self, message: Mapping[str, Any]) -> MessageKey:
        """Key of ``message``; ``MessageError`` if its shape cannot be read."""
        plain = canonical_message(message)
        for own in self._own:
            plain = own(plain)
        reasoning: Any = ""
        if self._reasoning_optional and plain.get("role") == "assistant":
            plain, reasoning = _without_reasoning(plain)
        if self._loose:
            try:
                return self._digest(plain, reasoning, _loose_arguments)
            except RecursionError:
                pass  # arguments nested too deep for a walk in Python are compared as text
        try:
            return self._digest(plain, reasoning, _strict_arguments)
        except RecursionError as error:
            raise MessageError("a message is nested too deep") from error

    def _digest(self, plain: dict[str, Any], reasoning: Any, arguments: Callable[[Any], list[Any]]) -> MessageKey:
        calls = plain.get("tool_calls")
        if calls:
            calls = [{**call, "arguments": arguments(call.get("arguments", ""))} for call in calls]
            plain = {**plain, "tool_calls": calls}
        return MessageKey(digest(canonical_json(plain)), digest(canonical_json(reasoning)) if reasoning else b"")


STRICT_MATCHER = Matcher((STRICT,))


def context_hash(tools: Sequence[Any] | None, template_kwargs: Mapping[str, Any] | None) -> bytes:
    """Key of what is rendered around the messages; no tools and ``[]`` are one, key order does not count."""
    return digest(canonical_json([list(tools or ()), dict(template_kwargs or {})]))


class ContextHashes:
    """``context_hash`` remembered by the exact text of its arguments, since agents resend their tools every turn."""

    _MAX = 64

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}

    def get(self, tools: Sequence[Any] | None, template_kwargs: Mapping[str, Any] | None) -> bytes:
        """``context_hash(tools, template_kwargs)``."""
        exact = digest(json.dumps([list(tools or ()), dict(template_kwargs or {})]))
        known = self._known.get(exact)
        if known is None:
            if len(self._known) >= self._MAX:
                self._known.clear()
            known = self._known[exact] = context_hash(tools, template_kwargs)
        return known
