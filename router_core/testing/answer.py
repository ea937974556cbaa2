"""An answer as the raw client received it, and a request as it sends it."""

import time
from typing import Any

import orjson

from router_core.testing.http1 import (
    BodyReader,
    Fields,
    Framing,
    Head,
    MalformedHttpError,
    RawPairs,
    build_head,
    raw_pairs,
)


class RawAnswer(Head):
    """An answer as it comes: ``body``, ``chunk_sizes`` and the verdict grow while it is read."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        version, _, rest = self.first_line.partition(b" ")
        status, _, reason = rest.partition(b" ")
        if not version.startswith(b"HTTP/1.") or len(status) != 3 or not status.isdigit():
            raise MalformedHttpError(f"an answer that begins with {self.first_line[:80]!r}")
        self.status = int(status)
        self.reason = reason.decode("latin-1")
        self.interim: list[RawAnswer] = []
        """The 1xx answers that came before this one."""
        self.body = b""
        self.started_at = time.monotonic()
        """When the head had come (time.monotonic)."""
        self.reader: BodyReader

    @property
    def clean(self) -> bool | None:
        """True: ended as its framing says. False: cut short. None: ended by a close (or not read to its end)."""
        return self.reader.clean

    @property
    def body_framing(self) -> Framing:
        return self.reader.framing

    @property
    def chunk_sizes(self) -> list[int]:
        return self.reader.chunk_sizes

    @property
    def trailers(self) -> RawPairs:
        return self.reader.trailers

    def json(self) -> Any:  # JSON has no narrower type
        return orjson.loads(self.body)


def build_request(
    method: str = "POST",
    target: str | bytes = "/generate",
    headers: Fields = (),
    body: bytes = b"",
    *,
    host: str = "router.test",
    json: object = None,
    framed: bool = True,
) -> bytes:
    """A request as bytes: Host first, ``headers`` as given, then Content-Length where the method or a body needs it.

    ``json`` is encoded into the body. With ``framed=False``, or a framing field among ``headers``, no length is added
    and ``body`` is sent as it is. A Host among ``headers`` replaces ours.
    """
    pairs = raw_pairs(headers)
    names = {name.lower() for name, _ in pairs}
    if b"host" not in names:
        pairs.insert(0, (b"Host", host.encode("latin-1")))
    if json is not None:
        body = orjson.dumps(json)
        if b"content-type" not in names:
            pairs.append((b"Content-Type", b"application/json"))
    is_framed = not framed or bool(names & {b"content-length", b"transfer-encoding"})
    if not is_framed and (body or method in ("POST", "PUT", "PATCH")):
        pairs.append((b"Content-Length", b"%d" % len(body)))
    target = target.encode("latin-1") if isinstance(target, str) else target
    return build_head(method.encode("latin-1") + b" " + target + b" HTTP/1.1", pairs) + body
