"""The one text of a JSON value and the plain form of a chat message, on which message identity rests.

Numbers are compared by value and without rounding: 1, 1.0 and 1e0 are one number, 2**53 and 2**53 + 1 are two,
``true`` is not 1. Object keys are unordered, arrays ordered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import MessageError

_COUNTING = ("role", "content", "reasoning_content", "reasoning", "function_call", "tool_call_id", "name", "refusal")
"""Keys of which ``canonical_message`` makes a message, beside its calls; of a call it leaves out the index."""
TEXT_PARTS = ("text", "input_text", "output_text")


class _Number(str):
    """Canonical text of a JSON number (``-12e3``), told from a JSON string by its type."""

    __slots__ = ()


def _number(text: str) -> _Number:
    mantissa, _, exponent = text.lower().partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("+-").partition(".")
    # Exponents of thousands of digits are legal JSON; Python refuses to read them, and the caller keeps the text.
    power = int(exponent or "0") - len(fraction)
    digits = (whole + fraction).lstrip("0")
    kept = digits.rstrip("0")
    if not kept:
        return _Number("0e0")
    return _Number(f"{sign}{kept}e{power + len(digits) - len(kept)}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("duplicate key")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def parse_json(text: str) -> Any:
    """The JSON value of ``text`` with exact numbers; ValueError or RecursionError if it has no single value."""
    return json.loads(
        text, parse_int=_number, parse_float=_number, parse_constant=_no_constant, object_pairs_hook=_object
    )


def canonical_json(value: Any) -> str:
    """Text that two JSON values share exactly when they are equal."""
    if isinstance(value, _Number):
        return str(value)
    if value is None or isinstance(value, bool | str):
        return json.dumps(value)
    if isinstance(value, int | float):
        text = repr(value)
        return text if text in ("nan", "inf", "-inf") else _number(text)
    if isinstance(value, Mapping):
        members = sorted((str(key), item) for key, item in value.items()) if _plain_keys(value) else None
        if members is None:
            raise MessageError("an object key is not text")
        return "{" + ",".join(f"{json.dumps(key)}:{canonical_json(item)}" for key, item in members) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(canonical_json, value)) + "]"
    raise MessageError(f"{type(value).__name__} is not a JSON value")


def _plain_keys(value: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) for key in value)


def is_plain(value: Any) -> bool:
    """Whether ``value`` has no number or boolean in it, so that Python's ``==`` means equality of JSON values."""
    if value is None or isinstance(value, str):
        return True
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    return isinstance(value, list) and all(map(is_plain, value))


def is_plain_message(message: Mapping[str, Any]) -> bool:
    """`is_plain` of what counts in a message: the numbers and booleans of other keys are no part of its identity."""
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        calls = [{k: v for k, v in call.items() if k != "index"} if isinstance(call, dict) else call for call in calls]
    return is_plain(calls) and all(is_plain(message.get(key)) for key in _COUNTING)


def part_text(part: Any) -> str | None:
    """Text of a content part, None if the part is not text."""
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type", "text") in TEXT_PARTS:
        text = part.get("text")
        return text if isinstance(text, str) else None
    return None


def join_parts(content: Sequence[Any]) -> str | None:
    """The text parts put together without a separator, None if any part is not text."""
    texts = [part_text(part) for part in content]
    return None if None in texts else "".join(text for text in texts if text is not None)


def has_media(message: Mapping[str, Any]) -> bool:
    """Whether a message holds anything but text."""
    content = message.get("content")
    return isinstance(content, list | tuple) and any(
        isinstance(part, Mapping) and part.get("type", "text") not in TEXT_PARTS for part in content
    )


def canonical_content(content: Any) -> Any:
    """Text as it is, None as "", text parts joined; other parts stay in a list with their neighbours joined."""
    if content is None:
        return ""
    if not isinstance(content, list | tuple):
        return content
    joined = join_parts(content)
    if joined is not None:
        return joined
    parts: list[Any] = []
    for part in content:
        text = part_text(part)
        if text is not None and parts and isinstance(parts[-1], str):
            parts[-1] += text
        else:
            parts.append(part if text is None else text)
    return parts


def _canonical_call(call: Any, where: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise MessageError(f"{where} must be an object, not {type(call).__name__}")
    function = call.get("function")
    body = function if isinstance(function, Mapping) else call
    kind = call.get("type")
    plain = {
        "id": call.get("id"),
        "type": None if kind == "function" else kind,
        "name": body.get("name"),
        "arguments": body.get("arguments"),
        "custom": call.get("custom"),
    }
    return {key: value for key, value in plain.items() if value not in (None, "")}


def canonical_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a chat message that make it what it is; null, "", [] and absent are one, unknown keys are left out.

    Keys: role, content, reasoning, tool_calls (id, type unless "function", name, arguments, custom), function_call,
    tool_call_id, name, refusal. Arguments stay as they came.
    """
    if not isinstance(message, Mapping):
        raise MessageError(f"a message must be an object, not {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise MessageError(f"a message has no role: {role!r}")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list | tuple):
        raise MessageError(f"tool_calls must be a list, not {type(calls).__name__}")
    plain = {
        "role": role,
        "content": canonical_content(message.get("content")),
        "reasoning": canonical_content(message.get("reasoning_content") or message.get("reasoning")),
        "tool_calls": [_canonical_call(call, f"tool_calls[{index}]") for index, call in enumerate(calls)],
        "function_call": message.get("function_call"),
        "tool_call_id": message.get("tool_call_id"),
        "name": message.get("name"),
        "refusal": message.get("refusal"),
    }
    return {key: value for key, value in plain.items() if not (value is None or value in ("", [], {}))}
