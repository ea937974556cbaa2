"""Worker URLs: what is accepted, and when two spellings are one worker."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

_RANK = re.compile(r"@([0-9]{1,6})/*\Z")
_HOST = re.compile(r"(?=.{1,253}\Z)(?:[A-Za-z0-9_-]{1,63}(?:\.|\Z))+\Z")
_IPV6 = re.compile(r"\[[0-9A-Fa-f:.]+\](?::[0-9]*)?\Z")
_DEFAULT_PORT = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class WorkerUrl:
    """A checked URL. ``base`` is what targets are appended to; ``key`` is equal for all spellings of one worker."""

    base: str
    dp_rank: int | None

    @property
    def key(self) -> str:
        return self.base if self.dp_rank is None else f"{self.base}@{self.dp_rank}"


def parse_worker_url(text: str) -> WorkerUrl:
    """Reads ``http(s)://host[:port][/prefix][@rank]``. Raises ValueError that says what is wrong."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError("a worker's URL is empty")
    rank = _RANK.search(text)
    bare = text[: rank.start()] if rank else text
    if any(not 32 < ord(c) < 127 for c in bare):
        raise ValueError(f"{text!r} holds a space, a control character or one that is not ASCII")
    try:
        parts = urlsplit(bare)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is no URL: {error}") from None
    if parts.scheme not in _DEFAULT_PORT:
        raise ValueError(f"{text!r} must start with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("a worker's URL holds user information; only @rank (a number) may follow the address")
    if parts.query or parts.fragment or "?" in bare or "#" in bare:
        raise ValueError(f"{text!r} must have no query and no fragment")
    if port == 0:
        raise ValueError(f"{text!r} has port 0")
    host = _host(parts, text)
    address = host if port is None or port == _DEFAULT_PORT[parts.scheme] else f"{host}:{port}"
    return WorkerUrl(f"{parts.scheme}://{address}{parts.path.rstrip('/')}", int(rank[1]) if rank else None)


class AllowedWorkers:
    """Which URLs may be a worker's: by scheme, and by host where hosts are given."""

    def __init__(self, schemes: Sequence[str] = tuple(_DEFAULT_PORT), hosts: Sequence[str] = ()) -> None:
        """``hosts``: names, ``*.domain``, addresses, networks. Raises ValueError for one that is none of these."""
        self._schemes = tuple(schemes)
        self._told = ", ".join(hosts)
        self._names = {host.lower() for host in hosts if "/" not in host}
        try:
            self._networks = [ipaddress.ip_network(host) for host in hosts if "/" in host]
        except ValueError as error:
            raise ValueError(f"no host and no network: {error}") from None

    def check(self, url: WorkerUrl) -> None:
        """Raises ValueError that says which setting forbids it."""
        parts = urlsplit(url.base)
        if parts.scheme not in self._schemes:
            allowed = ", ".join(self._schemes)
            raise ValueError(f"{url.base!r}: workers must be {allowed} (router.worker_schemes)")
        if self._told and not self._has_host(parts.hostname or ""):
            raise ValueError(f"{url.base!r}: workers must be on {self._told} (router.worker_hosts)")

    def _has_host(self, host: str) -> bool:
        host = host.lower()
        if host in self._names or f"[{host}]" in self._names:
            return True
        domains = (name[1:] for name in self._names if name.startswith("*."))
        if any(host.endswith(domain) and len(host) > len(domain) for domain in domains):
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def rank_urls(url: str, dp_size: int) -> list[str]:
    """The URLs of a server's data-parallel ranks, in the spelling of ``url``; of a single rank the URL itself.

    Raises ValueError, also for a URL that names a rank.
    """
    if parse_worker_url(url).dp_rank is not None:
        raise ValueError(f"{url!r} names one rank of a server: give no dp_size with it")
    return [url] if dp_size == 1 else [f"{url.rstrip('/')}@{rank}" for rank in range(dp_size)]


def _host(parts: SplitResult, text: str) -> str:
    host = parts.hostname
    if not host:
        raise ValueError(f"{text!r} names no host")
    if "[" in parts.netloc:
        try:
            if _IPV6.match(parts.netloc):
                return f"[{ipaddress.IPv6Address(host).compressed}]"
        except ValueError:
            pass
        raise ValueError(f"{text!r} holds no valid IPv6 address (without a zone)")
    if not _HOST.match(host):
        raise ValueError(f"{text!r} has no valid host name")
    return host.lower()
