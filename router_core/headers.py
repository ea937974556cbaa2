"""Header lists as they travel: ordered, repeated, raw bytes; the names compare without case.

The rules are RFC 9110 section 7.6 (hop-by-hop fields) and 5.3 (order of repeated fields).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from email.utils import formatdate
from functools import lru_cache
from time import time
from typing import Final, cast

RawHeaders = list[tuple[bytes, bytes]]
Boxed = list[tuple[bytes, ...]]
"""The same, where a loop passes pairs on, or is hot: compiled, pairs of known length are taken apart and made anew."""

HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
SERVER: Final = b"router-core"

_USUAL: Final = (
    *sorted(HOP_BY_HOP),
    *(b"accept", b"accept-encoding", b"accept-language", b"authorization", b"cache-control", b"content-encoding"),
    *(b"content-length", b"content-type", b"cookie", b"date", b"expect", b"host", b"server", b"set-cookie"),
    *(b"user-agent", b"vary", b"x-api-key", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"),
    *(b"x-request-id", b"x-router-worker", b"x-session-id"),
)
IN_LOWER_CASE: Final = {spelling: name for name in _USUAL for spelling in (name, name.title())}
"""Usual names, each always the same object, which is found in a set by a hash that is known already."""


_BREAKS_NAME, _BREAKS_VALUE = re.compile(r"[ \t\r\n:]"), re.compile(r"[\r\n\0]")


class Headers:
    """An ordered list of fields over ``raw``; names are lower-case bytes in ``raw``."""

    __slots__ = ("raw",)

    def __init__(self, raw: RawHeaders | None = None) -> None:
        self.raw: RawHeaders = [] if raw is None else raw

    def get(self, name: str) -> str | None:
        """The first value of a field, decoded as latin-1, or None."""
        key = _key(name)
        for field, value in self.raw:
            if field == key:
                return value.decode("latin-1")
        return None

    def get_all(self, name: str) -> list[str]:
        """Every value of a field in order."""
        key = _key(name)
        return [value.decode("latin-1") for field, value in self.raw if field == key]

    def get_raw(self, name: bytes) -> bytes | None:
        """`get` with a lower-case name, and without decoding: what costs least."""
        for field, value in self.raw:
            if field == name:
                return value
        return None

    def set(self, name: str, value: str) -> None:
        """Replaces every field of this name by one, at the end. Raises ValueError as `add` does."""
        self.set_raw(*_checked(name, value))

    def set_raw(self, name: bytes, value: bytes) -> None:
        """`set` with a lower-case name and a value that are known to be fit to send."""
        raw = self.raw
        for pair in cast("Boxed", raw):
            if pair[0] == name:
                raw[:] = [pair for pair in raw if pair[0] != name]
                break
        raw.append((name, value))

    def add(self, name: str, value: str) -> None:
        """Appends one more field. Raises ValueError where the value would break the message."""
        self.raw.append(_checked(name, value))

    def remove(self, name: str) -> None:
        """Drops every field of this name, if there is one."""
        key = _key(name)
        self.raw[:] = [pair for pair in self.raw if pair[0] != key]

    def copy(self) -> Headers:
        return Headers(list(self.raw))

    def __contains__(self, name: str) -> bool:
        key = _key(name)
        for field, _ in self.raw:  # noqa: SIM110  # a generator costs more than the look
            if field == key:
                return True
        return False

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((field.decode("latin-1"), value.decode("latin-1")) for field, value in self.raw)

    def __repr__(self) -> str:
        return f"Headers({self.raw!r})"


@lru_cache(maxsize=1024)
def _key(name: str) -> bytes:
    return name.lower().encode()


def _checked(name: str, value: str) -> tuple[bytes, bytes]:
    if not name or _BREAKS_NAME.search(name) or _BREAKS_VALUE.search(value):
        raise ValueError(f"not a header field: {name!r}: {value!r}")
    return name.lower().encode("latin-1"), value.encode("latin-1")


def named_by_connection(raw: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    """Names that a Connection field declares to be for this hop only."""
    names: set[bytes] = set()
    for field, value in raw:
        if field == b"connection":
            names.update(token.strip().lower() for token in value.split(b","))
    return names


def end_to_end(raw: RawHeaders) -> RawHeaders:
    """Those of lower-case fields that pass on, in order: no hop-by-hop one, none that Connection names."""
    kept = [pair for pair in cast("Boxed", raw) if pair[0] not in HOP_BY_HOP]
    if len(kept) < len(raw) and (named := named_by_connection(raw)):
        kept = [pair for pair in kept if pair[0] not in named]
    return cast("RawHeaders", kept)


_UNFIT: Final = 1
_NAME_FAULTS: Final = bytes(not 0x20 < code < 0x7F or code in b'"(),/:;<=>?@[\\]{}' for code in range(256))
"""Each byte's place says whether it is `_UNFIT`: one pass of ``translate``, and one look."""
_VALUE_FAULTS: Final = bytes(code == 0x7F or (code < 0x20 and code != 9) for code in range(256))


def is_fit_to_send(raw: RawHeaders) -> bool:
    """Whether every name is a token and no value holds a control character (RFC 9110, section 5)."""
    names = [name for name, _ in raw]
    values = b"".join([value for _, value in raw])
    return (
        b"" not in names
        and _UNFIT not in b"".join(names).translate(_NAME_FAULTS)
        and _UNFIT not in values.translate(_VALUE_FAULTS)
    )


def add_lines(lines: list[bytes], raw: RawHeaders) -> None:
    """Adds the line of each field as it is written, without its end."""
    lines += [name + b": " + value for name, value in raw]  # taken apart: what is no pair ends no head


def decimal(digits: bytes) -> int:
    """The number that ASCII digits say; -1 where they are none, or above 20. (``int`` takes five times as long.)"""
    if len(digits) > 20:
        digits = digits.lstrip(b"0") or b"0"  # any number of them may stand there
    if not 0 < len(digits) <= 20:
        return -1
    number = 0
    for place in range(len(digits)):
        code = digits[place]
        if not 0x30 <= code <= 0x39:
            return -1
        number = number * 10 + code - 0x30
    return number


def stated_length(value: bytes) -> int:
    """What a Content-Length states, with spaces around it or not; -1 where that is no number."""
    length = decimal(value)
    return length if length >= 0 else decimal(value.strip(b" \t"))


_NOW: Final = time


class _Date:
    """The second for which the Date value was made, and the value."""

    __slots__ = ("begins", "text")

    def __init__(self) -> None:
        self.begins = -1.0
        self.text = b""


_DATE: Final = _Date()


def http_date() -> bytes:
    """The Date value of this second."""
    now: float = _NOW()
    if not _DATE.begins <= now < _DATE.begins + 1.0:
        second = int(now)
        _DATE.begins, _DATE.text = float(second), formatdate(second, usegmt=True).encode()
    return _DATE.text


_LENGTH: Final = b"content-length"
_TREATED: Final = HOP_BY_HOP | {b"date", b"server", _LENGTH}
"""Names of an answer's fields that do not simply pass."""
_PASSING: Final = set(_USUAL) - _TREATED
"""Names that do, in lower case and fit to send: the usual ones, and those that came before."""
MAX_PASSING: Final = 1024


def fields_to_send(raw: RawHeaders, *, may_have_length: bool) -> tuple[RawHeaders, int | None]:
    """An answer's fields as they leave, and the length of its body where one is declared.

    Lower-case, no hop-by-hop one, exactly one Date and one Server: the first that came, else ours. Raises ValueError
    for fields that no server could send.
    """
    if _UNFIT in b"".join([value for _, value in raw]).translate(_VALUE_FAULTS):
        raise ValueError("no header fields")
    fields: Boxed = []
    length = -1
    has_date = has_server = False
    for pair in cast("Boxed", raw):
        name = pair[0]
        if name in _PASSING:
            fields.append(pair)
            continue
        if name not in _TREATED:
            name = _passing(name)
            pair = (name, pair[1])
        if name not in _TREATED:
            fields.append(pair)
        elif name == _LENGTH:
            if may_have_length:  # else it would be that of another answer's body
                if length >= 0 or (length := stated_length(pair[1])) < 0:
                    raise ValueError("no content length")
                fields.append((name, pair[1].strip(b" \t")))
        elif name == b"date":
            if not has_date:
                fields.append(pair)
            has_date = True
        elif name == b"server":
            if not has_server:
                fields.append(pair)
            has_server = True
    if not has_date:
        fields.append((b"date", http_date()))
    if not has_server:
        fields.append((b"server", SERVER))
    return cast("RawHeaders", fields), length if length >= 0 else None


def _passing(name: bytes) -> bytes:
    """A name in lower case, remembered if it passes. Raises ValueError."""
    if not name or _UNFIT in name.translate(_NAME_FAULTS):
        raise ValueError("no header fields")
    lower = name.lower()
    if lower not in _TREATED and len(_PASSING) < MAX_PASSING and len(lower) <= 64:
        _PASSING.add(bytes(lower))
    return lower


def one_date_and_server(raw: RawHeaders) -> RawHeaders:
    """The same fields with exactly one Date and one Server: the first that came, else ours."""
    seen: set[bytes] = set()
    out: RawHeaders = []
    for pair in raw:
        if pair[0] in (b"date", b"server"):
            if pair[0] in seen:
                continue
            seen.add(pair[0])
        out.append(pair)
    if b"date" not in seen:
        out.append((b"date", http_date()))
    if b"server" not in seen:
        out.append((b"server", SERVER))
    return out
