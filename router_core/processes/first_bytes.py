"""Which session a request is of, by the bytes in which it begins.

A guess, and free to be one: whoever serves the connection parses all of it, and forwards what is another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

import orjson

from router_core.headers import RawHeaders
from router_core.request_head import SessionHeaders

_SESSIONS: Final = b"/sessions"


class SessionFields:
    """The header fields that may name a session: the first of ``names`` that is there does."""

    __slots__ = ("_needles", "_places")

    def __init__(self, names: Sequence[str]) -> None:
        self._places = SessionHeaders(names).places
        self._needles = [b"\r\n%b:" % name for name in sorted(self._places, key=self._places.__getitem__)]

    def session_of(self, data: bytes) -> str | None:
        """The session that the path names, or the body where it opens one, or one of the fields.

        None where there is no whole head.
        """
        end, target = data.find(b"\r\n\r\n"), data.find(b" ") + 1
        if end < 0:
            return None
        if data[target : target + len(_SESSIONS)] == _SESSIONS:
            path = data[target : data.find(b" ", target)].partition(b"?")[0]
            parts = path.split(b"/", 3)
            return unquote_to_bytes(parts[2]).decode("utf-8", "replace") if len(parts) > 2 else id_in(data[end + 4 :])
        head = data[:end].lower()
        for needle in self._needles:
            if (at := head.find(needle) + len(needle)) >= len(needle):
                return data[at : data.find(b"\r\n", at)].strip(b" \t").decode("latin-1")
        return None

    def named_by(self, fields: RawHeaders) -> str | None:
        """The session that fields with lower-case names name."""
        places = self._places
        found, best = None, len(places)
        for name, value in fields:
            if name in places and places[name] < best:
                found, best = value, places[name]
        return None if found is None else found.decode("latin-1")


def id_in(body: bytes) -> str | None:
    """The session id in the body of ``POST /sessions``; what is wrong with one is said by the route."""
    try:
        said = orjson.loads(body)
    except ValueError:
        return None
    session_id = said.get("session_id") if isinstance(said, dict) else None
    return session_id if isinstance(session_id, str) else None
