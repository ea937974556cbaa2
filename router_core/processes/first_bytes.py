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
    end = data.find(b"\r\n\r\n")
    line = data[: data.find(b"\r\n")].split(b" ")
    if end < 0 or len(line) < 2:
        return None
    if line[1].startswith(b"/sessions"):
        parts = line[1].partition(b"?")[0].split(b"/", 3)
        if len(parts) > 2:
            return unquote_to_bytes(parts[2]).decode("utf-8", "replace")
        return id_in(data[end + 4 :])
    head = data[: end + 2].lower()
    for name in session_headers:
        at = head.find(b"\r\n%b:" % name)
        if at >= 0:
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
