"""Who may reach the router's own routes: by which address, and with which token."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from typing import Any

from router_core.config import Config
from router_core.errors import ConfigError, Reject

PROBES = frozenset((b"/health", b"/liveness", b"/readiness"))
"""Paths that everybody may ask, at every address."""
DATA_ADDRESS = "router_core.data_address"
"""Scope key: host and port of the address for turns, for a request that came by the other one."""


class Access:
    """Guards every route of the router's own but the probes; turns of a session and what is proxied are no such."""

    def __init__(self, config: Config) -> None:
        """Raises ConfigError for addresses that cannot be told apart."""
        settings = config.router
        token = settings.admin_token
        self._token = token.get_secret_value().encode() if token is not None else None
        self.is_apart = settings.admin_port is not None
        """Whether they have an address of their own."""
        self._admin_port: int | None = None
        self._data_address: tuple[str, int] | None = None
        if settings.admin_host is not None and not self.is_apart:
            where = config.where("router.admin_host")
            raise ConfigError("needs router.admin_port beside it", where=where, key="router.admin_host")
        if self.is_apart and settings.admin_port == settings.port != 0:
            where = config.where("router.admin_port")
            raise ConfigError("must differ from router.port", where=where, key="router.admin_port")

    @property
    def has_token(self) -> bool:
        return self._token is not None

    def opened(self, data: socket.socket, admin: socket.socket | None) -> None:
        """The addresses that were bound. Before that, routes that are apart are served nowhere."""
        self._data_address = data.getsockname()[:2]
        self._admin_port = admin.getsockname()[1] if admin is not None else None

    def check(self, scope: Mapping[str, Any], path: bytes) -> None:
        """Raises Reject: 404 at the address for turns, 401 without the token."""
        if path in PROBES:
            return
        if self.is_apart and not self._came_by_admin(scope):
            raise Reject(404, "not_found", "the router's own routes are not served at this address (router.admin_port)")
        if self._token is not None and not hmac.compare_digest(_bearer(scope), self._token):
            raise Reject(401, "unauthorized", "needs the router's token: Authorization: Bearer TOKEN", "authorization")

    def data_address(self, scope: Mapping[str, Any]) -> tuple[str, int] | None:
        """Where turns are served, for a request that came by the other address."""
        return self._data_address if self.is_apart and self._came_by_admin(scope) else None

    def _came_by_admin(self, scope: Mapping[str, Any]) -> bool:
        server = scope.get("server")
        return server is not None and self._admin_port is not None and server[1] == self._admin_port


def _bearer(scope: Mapping[str, Any]) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return bytes(value[7:].strip())
    return b""


def is_loopback(listener: socket.socket) -> bool:
    """Whether nobody but this machine reaches it."""
    return ipaddress.ip_address(listener.getsockname()[0].split("%")[0]).is_loopback
