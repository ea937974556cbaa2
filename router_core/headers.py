"""Header lists as they travel: ordered, repeated, raw bytes; the names compare without case.

The rules are RFC 9110 section 7.6 (hop-by-hop fields) and 5.3 (order of repeated fields).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from email.utils import formatdate
from time import time

RawHeaders = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
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
SERVER = b"router-core"


class Headers:
    """An ordered list of fields over ``raw``; names are lower-case bytes in ``raw``."""

    __slots__ = ("raw",)

    def __init__(self, raw: RawHeaders | None = None) -> None:
        self.raw: RawHeaders = [] if raw is None else raw

    def get(self, name: str) -> str | None:
        """The first value of a field, decoded as latin-1, or None."""
        key = name.lower().encode()
        for field, value in self.raw:
            if field == key:
                return value.decode("latin-1")
        return None

    def get_all(self, name: str) -> list[str]:
        """Every value of a field in order."""
        key = name.lower().encode()
        return [value.decode("latin-1") for field, value in self.raw if field == key]

    def set(self, name: str, value: str) -> None:
        """Replaces every field of this name by one, at the end."""
        self.remove(name)
        self.add(name, value)

    def add(self, name: str, value: str) -> None:
        """Appends one more field. Raises ValueError where the value would break the message."""
        if not name or any(c in name for c in " \t\r\n:") or any(c in value for c in "\r\n\0"):
            raise ValueError(f"not a header field: {name!r}: {value!r}")
        self.raw.append((name.lower().encode("latin-1"), value.encode("latin-1")))

    def remove(self, name: str) -> None:
        """Drops every field of this name, if there is one."""
        key = name.lower().encode()
        self.raw[:] = [pair for pair in self.raw if pair[0] != key]

    def copy(self) -> Headers:
        return Headers(list(self.raw))

    def __contains__(self, name: str) -> bool:
        key = name.lower().encode()
        return any(field == key for field, _ in self.raw)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((field.decode("latin-1"), value.decode("latin-1")) for field, value in self.raw)

    def __repr__(self) -> str:
        return f"Headers({self.raw!r})"


def named_by_connection(raw: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    """Names that a Connection field declares to be for this hop only."""
    names: set[bytes] = set()
    for field, value in raw:
        if field == b"connection":
            names.update(token.strip().lower() for token in value.split(b","))
    return names


def end_to_end(raw: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """The fields that pass on, lower-cased and in order: no hop-by-hop one, none that Connection names."""
    lowered = [(field.lower(), value) for field, value in raw]
    dropped = HOP_BY_HOP
    if any(field == b"connection" for field, _ in lowered):
        dropped = HOP_BY_HOP | named_by_connection(lowered)
    return [pair for pair in lowered if pair[0] not in dropped]


_UNFIT_IN_NAMES = re.compile(rb'[\x00-\x20\x7f-\xff"(),/:;<=>?@\[\\\]{}]')
_UNFIT_IN_VALUES = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def is_fit_to_send(raw: RawHeaders) -> bool:
    """Whether every name is a token and no value holds a control character (RFC 9110, section 5)."""
    names = b"".join(name for name, _ in raw)
    values = b"".join(value for _, value in raw)
    return not _UNFIT_IN_NAMES.search(names) and not _UNFIT_IN_VALUES.search(values) and all(name for name, _ in raw)


def content_length(raw: Iterable[tuple[bytes, bytes]]) -> int | None:
    """The declared body length in bytes, or None where there is none or no single number."""
    values = {value.strip() for field, value in raw if field == b"content-length"}
    if len(values) != 1:
        return None
    value = values.pop()
    return int(value) if value.isdigit() else None


def forwarded(raw: RawHeaders, client_host: str | None, scheme: str) -> None:
    """Appends this hop to ``X-Forwarded-For`` and states proto and host where no earlier proxy did.

    Changes ``raw`` in place; reads the client's Host field, so it runs before Host is rewritten.
    """
    names = {field for field, _ in raw}
    if client_host:
        earlier = [value for field, value in raw if field == b"x-forwarded-for"]
        if earlier:
            raw[:] = [pair for pair in raw if pair[0] != b"x-forwarded-for"]
        raw.append((b"x-forwarded-for", b", ".join([*earlier, client_host.encode("latin-1")])))
    if b"x-forwarded-proto" not in names:
        raw.append((b"x-forwarded-proto", scheme.encode()))
    if b"x-forwarded-host" not in names:
        host = next((value for field, value in raw if field == b"host"), None)
        if host is not None:
            raw.append((b"x-forwarded-host", host))


_date: tuple[int, bytes] = (0, b"")


def http_date() -> bytes:
    """The Date value of this second."""
    global _date
    now = int(time())
    if _date[0] != now:
        _date = (now, formatdate(now, usegmt=True).encode())
    return _date[1]


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
