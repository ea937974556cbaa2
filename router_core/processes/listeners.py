"""The sockets of all processes at one port: the kernel spreads new connections over them (SO_REUSEPORT).

The supervisor keeps every socket open while a process is replaced, so that no connection is refused meanwhile: those
that the kernel gave to the lost one's socket wait for its successor.
"""

from __future__ import annotations

import socket
import sys

from router_core.config import Config
from router_core.errors import ConfigError
from router_core.server import BACKLOG, Listeners, listen


def listen_for_all(config: Config, processes: int) -> list[Listeners]:
    """Binds what is configured, once for each process. Raises ConfigError."""
    if not sys.platform.startswith("linux"):
        where = config.where("router.processes")
        raise ConfigError("several processes need Linux", where=where, key="router.processes")
    first = listen(config)  # alone: a port that somebody has, even with SO_REUSEPORT, is refused here
    data, admin = first.data.getsockname(), first.admin.getsockname() if first.admin is not None else None
    family = {"data": first.data.family, "admin": first.admin.family if first.admin is not None else None}
    first.close()
    found: list[Listeners] = []
    try:
        for _ in range(processes):
            shared = _share(family["data"], data)
            found.append(Listeners(shared, None if admin is None else _share(family["admin"], admin)))
    except OSError as error:
        for listeners in found:
            listeners.close()
        message = f"cannot listen on {data[0]}:{data[1]} by several processes: {error.strerror or error}"
        raise ConfigError(message, where=config.where("router.port"), key="router.port") from None
    return found


def _share(family: int | None, address: object) -> socket.socket:
    listener = socket.socket(family or socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)  # type: ignore[arg-type]  # what getsockname said
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
