"""Sets or removes one top-level key of a JSON object without touching any other byte of it."""

from __future__ import annotations

import functools
import json
import re

# Possessive, and a string that never ends runs to the end of the body: linear for every body, and no stack that grows.
_TEXT = rb'"(?:[^"\\]++|\\.)*+"?'
_STRING = re.compile(_TEXT, re.DOTALL)
_FLAT = rb'(?:[^"{}\[\]]++|%b)*+' % _TEXT
_BRACKET = re.compile(rb"(?:[^\"{}\[\]]++|%b|\{%b\}|\[%b\]){0,1000}([{}\[\]]?)" % (_TEXT, _FLAT, _FLAT), re.DOTALL)
"""Up to the next bracket that is no part of a text, or of objects and arrays without another one in them: those are
skipped, so many at a time; there may be no bracket yet.

Not possessive: what turns out not to be flat has failed half way, and until 3.11.5 Python did not go back then. So it
must match everywhere: where it had to try again with less, it would try every way to cut the texts.
"""
_SPACE = re.compile(rb"[ \t\r\n]*+")
_LITERAL = re.compile(rb"[^,}\]\s]++")


def is_object(body: bytes) -> bool:
    """Whether the text looks like one JSON object from its outside."""
    if body.startswith(b"{") and body.endswith(b"}"):
        return True
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
    return b"".join((inner, comma, _written(name), b": ", value, body[close:]))


def remove_top_level_key(body: bytes, name: str) -> bytes:
    """``body`` without any top-level occurrence of ``name``, its value and one comma; what is no object stays."""
    if not is_object(body):
        return body
    key = _written(name)
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
    key = _written(name)
    spans: list[tuple[int, int]] = []
    at, depth, is_quoted = 0, 0, False  # what is known at ``at``
    found = body.find(key)
    while found >= 0:
        behind = found + len(key)
        colon = _space_end(body, behind)
        if body[colon : colon + 1] != b":" or body[found - 1 : found] == b"\\":  # a value, or words in a text
            found = body.find(key, found + 1)
            continue
        depth, is_quoted = _depth_behind(body[at:found], depth, is_quoted)
        at = found
        if depth == 1 and not is_quoted:
            start = _space_end(body, colon + 1)
            at = behind = _value_end(body, start)
            spans.append((start, at))
        found = body.find(key, behind)
    return spans


def _depth_behind(part: bytes, depth: int, is_quoted: bool) -> tuple[int, bool]:
    """How deep in objects and arrays one is behind ``part``, which begins with no escaped quote, and whether in a text.

    All is counted at once, a look at every bracket would take thirty times as long.
    """
    texts = part.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    outside = b"".join(texts[is_quoted::2])
    opened = outside.count(b"{") + outside.count(b"[") - outside.count(b"}") - outside.count(b"]")
    return depth + opened, is_quoted != (len(texts) % 2 == 0)


@functools.lru_cache(maxsize=1024)
def _written(name: str) -> bytes:
    return json.dumps(name).encode()


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
    depth, at = 1, start + 1
    while (passed := _BRACKET.match(body, at)) is not None and passed.end() > at:
        at = passed.end()
        bracket = passed[1]
        if bracket:
            depth += 1 if bracket in b"{[" else -1
        if depth == 0:
            return at
    return len(body)
