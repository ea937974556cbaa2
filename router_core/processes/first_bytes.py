"""Which session a request is of, by the bytes in which it begins.

A guess, and free to be one: whoever serves the connection parses all of it, and forwards what is another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

import orjson


def session_of(data: bytes, session_headers: Sequence[bytes]) -> str | None:
    """The session that the path names, or the body where it opens one, or one of these fields, which are lower case.

    None where there is no whole head.
    """
    end, target = data.find(b"\r\n\r\n"), data.find(b" ") + 1
    if end < 0:
        return None
    if data.startswith(b"/sessions", target):
        path = data[target : data.find(b" ", target)].partition(b"?")[0]
        parts = path.split(b"/", 3)
        return unquote_to_bytes(parts[2]).decode("utf-8", "replace") if len(parts) > 2 else id_in(data[end + 4 :])
    head = data[: end + 2].lower()
    for name in session_headers:
        if (at := head.find(b"\r\n" + name + b":")) >= 0:
            at += len(name) + 3
            return data[at : data.find(b"\r\n", at)].strip(b" \t").decode("latin-1")
    return None


def id_in(body: bytes) -> str | None:
    """The session id in the body of ``POST /sessions``; what is wrong with one is said by the route."""
    try:
        said = orjson.loads(body)
    except ValueError:
        return None
    session_id = said.get("session_id") if isinstance(said, dict) else None
    return session_id if isinstance(session_id, str) else None
