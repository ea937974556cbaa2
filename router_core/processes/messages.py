"""What the supervisor and its processes say to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from router_core.config import Config


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
    taking_fd: int
    giving_fds: Sequence[int]
    """By slot: where connections are taken, and where they are handed to the others."""
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
class Ping:
    """Say something: a process from which nothing comes any more counts as hung."""


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
class Pong:
    """The event loop runs."""


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
