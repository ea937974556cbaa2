"""A client's header fields, looked at once: what goes on to the worker, the body's framing, what is for the router."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from router_core.headers import HOP_BY_HOP, Boxed, RawHeaders, named_by_connection, stated_length

PLUGINS_HEADER: Final = "x-router-plugins"
PROFILE_HEADER: Final = "x-router-profile"
DEBUG_HEADER: Final = "x-router-debug"

_PLUGINS: Final = PLUGINS_HEADER.encode()
_PROFILE: Final = PROFILE_HEADER.encode()
_DEBUG: Final = DEBUG_HEADER.encode()
_HOST: Final = b"host"
_LENGTH: Final = b"content-length"
_CODING: Final = b"transfer-encoding"
_FOR: Final = b"x-forwarded-for"
_PROTO: Final = b"x-forwarded-proto"
_FORWARDED_HOST: Final = b"x-forwarded-host"
_DROPPED: Final = HOP_BY_HOP | {_HOST, _LENGTH, b"expect", _PLUGINS, _PROFILE, _DEBUG, _FOR}
_LOOKED_AT: Final = _DROPPED | {_PROTO, _FORWARDED_HOST}


class SessionHeaders:
    """The fields that may name a session; the first of them that is there does."""

    __slots__ = ("looked_at", "places")

    def __init__(self, names: Sequence[str]) -> None:
        self.places = {name.lower().encode(): place for place, name in reversed(list(enumerate(names)))}
        self.looked_at = _LOOKED_AT.union(self.places)


NO_SESSIONS = SessionHeaders(())


class RequestHead:
    """``fields`` are the end-to-end ones, in order, with this hop in ``X-Forwarded-For`` (RFC 9110, section 7.6).

    ``X-Forwarded-Proto`` and ``-Host`` are stated where no earlier proxy did. Host and framing are left out: the client
    of the worker writes its own.
    """

    __slots__ = ("content_length", "debug", "fields", "is_declared", "plugins", "profile", "session_id")

    def __init__(
        self, raw: RawHeaders, client_host: str | None, scheme: str, session_headers: SessionHeaders = NO_SESSIONS
    ) -> None:
        """``raw`` has lower-case names; it is left as it is."""
        fields = [pair for pair in cast("Boxed", raw) if pair[0] not in _DROPPED]
        self.content_length: int | None = None
        """The declared length of the body in bytes; None where it is chunked, and where there is no single number."""
        self.is_declared = False
        """Whether a body was announced, be it empty."""
        self.profile: str | None = None
        self.plugins: str | None = None
        self.debug: str | None = None
        self.session_id: str | None = None
        """As a header names it."""
        looked_at, places = session_headers.looked_at, session_headers.places
        place = len(places)
        is_chunked = has_proto = has_forwarded_host = False
        host: bytes | None = None
        hops: list[bytes] = []
        for name, value in raw:
            if name not in looked_at:
                continue
            if name == _HOST:
                host = value if host is None else host
            elif name == _LENGTH:
                self._declare(value)
            elif name == _CODING:
                is_chunked = True
            elif name == _FOR:
                hops.append(value)
            elif name == _PROTO:
                has_proto = True
            elif name == _FORWARDED_HOST:
                has_forwarded_host = True
            elif name == b"connection":
                named = named_by_connection(raw)
                fields = [pair for pair in fields if pair[0] not in named]
            elif name == _PROFILE and self.profile is None:
                self.profile = value.decode("latin-1")
            elif name == _PLUGINS and self.plugins is None:
                self.plugins = value.decode("latin-1")
            elif name == _DEBUG and self.debug is None:
                self.debug = value.decode("latin-1")
            if name in places and places[name] < place:
                self.session_id, place = value.decode("latin-1"), places[name]
        if is_chunked:
            self.is_declared, self.content_length = True, None
        if client_host:
            hops.append(client_host.encode("latin-1"))
        if hops:
            fields.append((_FOR, hops[0] if len(hops) == 1 else b", ".join(hops)))
        if not has_proto:
            fields.append((_PROTO, scheme.encode()))
        if host is not None and not has_forwarded_host:
            fields.append((_FORWARDED_HOST, host))
        self.fields = cast("RawHeaders", fields)

    def _declare(self, value: bytes) -> None:
        length = stated_length(value)
        number = length if length >= 0 else None
        self.content_length = number if not self.is_declared or number == self.content_length else None
        self.is_declared = True
