"""What the first bytes of a connection say of the request that they begin.

A guess, and free to be one: whoever serves the connection parses all of it again.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote


def read_first_request(data: bytes) -> tuple[dict[str, Any], bytes] | None:
    """Its scope, as far as that says where it belongs, and the beginning of its body; None without a whole head."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    line, *fields = data[:end].split(b"\r\n")
    method, _, rest = line.partition(b" ")
    path, _, query = rest.partition(b" ")[0].partition(b"?")
    headers = []
    for field in fields:
        name, _, value = field.partition(b":")
        headers.append((name.lower(), value.strip()))
    scope = {
        "type": "http",
        "method": method.decode("latin-1"),
        "root_path": "",
        "path": unquote(path.decode("latin-1")),
        "raw_path": path,
        "query_string": query,
        "headers": headers,
    }
    return scope, data[end + 4 :]
