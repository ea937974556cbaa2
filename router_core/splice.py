"""Sets or removes one top-level key of a JSON object without touching any other byte of it."""

from __future__ import annotations

import json
import re

# Possessive, and a string that never ends runs to the end of the body: linear for every body, and no stack that grows.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_MARK = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[{}\[\]]', re.DOTALL)
_SPACE = re.compile(rb"[ \t\r\n]*+")
_LITERAL = re.compile(rb"[^,}\]\s]++")


def is_object(body: bytes) -> bool:
    """Whether the text looks like one JSON object from its outside."""
    start, end = _space_end(body, 0), len(body)
    while end > start and body[end - 1] in b" \t\r\n":
        end -= 1
    return body[start : start + 1] == b"{" and body[end - 1 : end] == b"}"


def set_top_level_key(body: bytes, name: str, value: bytes) -> bytes:
    """``body`` with ``name`` set to the JSON text ``value``.

    Every top-level occurrence gets the value; a missing key is appended, so that it wins over a spelling of it
    with escapes. What is no object comes back as it was: the worker will say so.
    """
    if not is_object(body):
        return body
    spans = top_level_spans(body, name)
    if spans:
        parts, last = [], 0
        for start, end in spans:
            parts += [body[last:start], value]
            last = end
        return b"".join([*parts, body[last:]])
    close = body.rindex(b"}")
    inner = body[:close].rstrip(b" \t\r\n")
    comma = b"" if inner.endswith(b"{") and not inner[:-1].strip(b" \t\r\n") else b", "
    return b"".join((inner, comma, json.dumps(name).encode(), b": ", value, body[close:]))


def remove_top_level_key(body: bytes, name: str) -> bytes:
    """``body`` without any top-level occurrence of ``name``, its value and one comma; what is no object stays."""
    if not is_object(body):
        return body
    key = json.dumps(name).encode()
    parts, last = [], 0
    for start, end in top_level_spans(body, name):
        before = body[last : body.rindex(key, last, start)].rstrip(b" \t\r\n")
        if before.endswith(b","):
            before = before[:-1]
        elif body.startswith(b",", comma := _space_end(body, end)):
            end = _space_end(body, comma + 1)
        parts.append(before)
        last = end
    return b"".join([*parts, body[last:]])


def top_level_spans(body: bytes, name: str) -> list[tuple[int, int]]:
    """Where the values of a top-level key stand, as ``[start, end)`` in bytes. Linear, without parsing values."""
    key = json.dumps(name).encode()
    if key not in body:
        return []
    spans: list[tuple[int, int]] = []
    depth, at = 0, 0
    while (mark := _MARK.search(body, at)) is not None:
        token, at = mark.group(), mark.end()
        if token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
        elif depth == 1 and token == key:
            colon = _space_end(body, at)
            if body[colon : colon + 1] == b":":
                start = _space_end(body, colon + 1)
                at = _value_end(body, start)
                spans.append((start, at))
    return spans


def _space_end(body: bytes, at: int) -> int:
    found = _SPACE.match(body, at)
    return found.end() if found else at


def _value_end(body: bytes, start: int) -> int:
    first = body[start : start + 1]
    if first == b'"':
        text = _STRING.match(body, start)
        return text.end() if text else len(body)
    if first not in (b"{", b"["):
        literal = _LITERAL.match(body, start)
        return literal.end() if literal else start
    depth, at = 0, start
    while (mark := _MARK.search(body, at)) is not None:
        token, at = mark.group(), mark.end()
        if token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
            if depth == 0:
                return at
    return len(body)
