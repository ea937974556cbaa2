"""Clients for data traffic to workers."""

from typing import Literal

from router_core.upstream.aiohttp_client import AiohttpUpstream
from router_core.upstream.h1 import H1Upstream
from router_core.upstream.interface import Incoming, Outgoing, Upstream


def make_upstream(kind: Literal["h1", "aiohttp"], *, connect_timeout_s: float, max_field_bytes: int) -> Upstream:
    """The data client of this name."""
    client = H1Upstream if kind == "h1" else AiohttpUpstream
    return client(connect_timeout_s=connect_timeout_s, max_field_bytes=max_field_bytes)


__all__ = ["AiohttpUpstream", "H1Upstream", "Incoming", "Outgoing", "Upstream", "make_upstream"]
