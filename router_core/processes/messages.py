"""What the supervisor and its processes say to each other, and the link that carries it.

A link is one end of a socket pair that nobody else has; what is said is pickled, and comes in the order it was sent.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from router_core.config import Config

_LENGTH = struct.Struct("!Q")


# ------------------------------------------------------------------------------------ from the supervisor to a process
@dataclass(frozen=True, slots=True)
class Setup:
    """The first message: all that a process needs to be built."""

    slot: int
    processes: int
    config: Config
    generation: int
    """Number of the generation that the others serve."""
    data_fd: int
    admin_fd: int | None
    counts_fd: int
    secret: bytes
    """Begins each connection of one process to another; new in each run."""


@dataclass(frozen=True, slots=True)
class Go:
    """Start: with the state of a process that runs already, if there is one."""

    handed: Handed | None
    lost: Mapping[str, str]
    """Sessions that the process's predecessors lost -> how."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Everything is as in the other processes: take requests."""


@dataclass(frozen=True, slots=True)
class Peers:
    """The address of each process for forwarded requests; None while it is away."""

    addresses: Sequence[str | None]


@dataclass(frozen=True, slots=True)
class Run:
    """Something that every process runs, in the order of these messages."""

    serial: int
    what: Any


@dataclass(frozen=True, slots=True)
class Told:
    """The answers to an `Ask`, by slot."""

    id: int
    answers: Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class Stop:
    """End in good order."""


# ------------------------------------------------------------------------------------ from a process to the supervisor
@dataclass(frozen=True, slots=True)
class Hello:
    """Built and not started yet; forwarded requests will be taken at this address."""

    address: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The configuration is wrong."""

    message: str
    where: str
    key: str


@dataclass(frozen=True, slots=True)
class Started:
    """Plugins run and what was handed over is taken."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Requests are taken."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Have every process run this."""

    id: int
    what: Any


@dataclass(frozen=True, slots=True)
class Ran:
    """This process ran it."""

    serial: int
    answer: Any


@dataclass(frozen=True, slots=True)
class Opened:
    """A session is open; sent before its client hears of it."""

    session_id: str


@dataclass(frozen=True, slots=True)
class Closed:
    session_id: str


# ------------------------------------------------------------------------------------------- what all processes run
@dataclass(frozen=True, slots=True)
class RouteCall:
    """A request for one of the router's own routes."""

    scope: Mapping[str, Any]
    body: bytes


@dataclass(frozen=True, slots=True)
class RouteAnswer:
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


@dataclass(frozen=True, slots=True)
class Tell:
    """A message for a plugin's hook `told`."""

    plugin: str
    message: Any


@dataclass(frozen=True, slots=True)
class HandOver:
    """The state that a new process needs; one process is asked."""


@dataclass(frozen=True, slots=True)
class Handed:
    workers: Sequence[Mapping[str, Any]]
    plugins: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reload:
    """Asked of the supervisor alone: read the configuration anew, and have all take it or none."""


@dataclass(frozen=True, slots=True)
class Prepare:
    config: Config


@dataclass(frozen=True, slots=True)
class Commit:
    """The prepared generation serves from now on."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """The prepared generation will not serve."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer: the Reject that was raised."""

    status: int
    code: str
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """An answer: it failed, and the process logged why."""

    message: str


class Link:
    """One end, in an event loop."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._unsent = bytearray()
        self._unread = bytearray()
        self._is_closed = False

    def send(self, message: object) -> None:
        """Hands it to the kernel at once, as far as there is room: what is there outlives this process."""
        said = pickle.dumps(message)
        self._unsent += _LENGTH.pack(len(said)) + said
        if len(self._unsent) == len(said) + _LENGTH.size:  # else the loop is at it
            self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._unsent and not self._is_closed:
                del self._unsent[: self._end.send(self._unsent)]
        except BlockingIOError:
            loop.add_writer(self._end, self._flush)
            return
        except OSError:  # nobody is there any more: `receive` says so
            self._unsent.clear()
        if not self._is_closed:
            loop.remove_writer(self._end)

    async def receive(self) -> Any:
        """The next message. Raises EOFError once the other end is gone."""
        (length,) = _LENGTH.unpack(await self._read(_LENGTH.size))
        return pickle.loads(await self._read(length))  # a process of ours wrote it

    async def _read(self, count: int) -> bytes:
        loop = asyncio.get_running_loop()
        while len(self._unread) < count:
            try:
                part = await loop.sock_recv(self._end, 1 << 18)
            except OSError as error:
                raise EOFError from error
            if not part:
                raise EOFError
            self._unread += part
        read = bytes(self._unread[:count])
        del self._unread[:count]
        return read

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            asyncio.get_running_loop().remove_writer(self._end)
            self._end.close()


def read_first(end: socket.socket) -> Any:
    """The first message, before there is a loop."""
    with end.makefile("rb", buffering=0) as file:
        (length,) = _LENGTH.unpack(_exactly(file, _LENGTH.size))
        return pickle.loads(_exactly(file, length))  # our supervisor wrote it


def _exactly(file: Any, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = file.read(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return parts
