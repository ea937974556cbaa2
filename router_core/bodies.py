"""Bodies of calls to the router's own routes: read whole, bounded, and told what is wrong with them."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from router_core.errors import Reject

if TYPE_CHECKING:
    from starlette.requests import Request

MAX_ADMIN_BODY_BYTES = 16 << 20
MAX_VERSION_CHARACTERS = 128


async def read_json(request: Request) -> Any:
    """The body of a call to one of our own routes; None where it is empty. Raises Reject (400, 413) with the reason."""
    from starlette.requests import ClientDisconnect  # late: a plugin's import of router_core stays light

    parts, size = [], 0
    try:
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > MAX_ADMIN_BODY_BYTES:
                raise Reject(413, "body_too_large", f"the body is longer than {MAX_ADMIN_BODY_BYTES} bytes")
    except ClientDisconnect:
        raise Reject(400, "malformed_body", "the body is not whole") from None
    body = b"".join(parts)
    if not body.strip():
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Reject(400, "malformed_body", f"the body is not JSON: {error}") from None


async def read_object(request: Request) -> dict[str, Any]:
    """The same, but an object; an empty body is an empty object."""
    body = await read_json(request)
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise Reject(400, "malformed_body", f"the body must be a JSON object, not {type(body).__name__}")
    return body


def is_text(value: object) -> bool:
    """Whether it is a text that can be written down: JSON may smuggle halves of a character in."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_number(value: object, name: str) -> float:
    """A finite number. Raises Reject (400) naming the field."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise Reject(400, "bad_value", f"{name} must be a finite number", name)


def checked_version(version: object, name: str) -> str:
    """A weight version as it is kept: a text, whatever it says. Raises Reject (400) naming the field."""
    text = str(version) if isinstance(version, int) and not isinstance(version, bool) else version
    if not isinstance(text, str) or not 0 < len(text) <= MAX_VERSION_CHARACTERS or not text.isprintable():
        raise Reject(400, "bad_value", f"{name} must be a text of 1 to {MAX_VERSION_CHARACTERS} characters", name)
    return text
