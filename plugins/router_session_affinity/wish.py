"""What a request's own headers ask for: a pin to a worker, and whether its session sticks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router_core import Headers, Reject, Worker

WORKER, RANK = "x-base-worker-id", "x-target-dp-rank"
ONCE, HARD, STICKY = "x-force-pin-once", "x-hard-pin", "x-is-sticky"
_NAMES: Final = {name.encode(): name for name in (WORKER, RANK, ONCE, HARD, STICKY)}
_WORKER_FIELD: Final = WORKER.encode()
_RANK_FIELD: Final = RANK.encode()
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
_WORKER_NAME = re.compile(r"^[\x21-\x7e]{1,2048}$")
_RANK_NUMBER = re.compile(r"^\d{1,6}$")


@dataclass(frozen=True, slots=True)
class Pin:
    """A worker that the request names."""

    name: str
    """An id or URL, of one worker or of a server with several data-parallel ranks."""
    rank: int | None
    is_hard: bool
    """No other worker will do."""
    is_once: bool
    """It holds for the first attempt alone."""

    def __str__(self) -> str:
        return self.name if self.rank is None else f"{self.name}, rank {self.rank}"


@dataclass(frozen=True, slots=True)
class Wish:
    """All that the headers ask for."""

    pin: Pin | None = None
    is_sticky: bool | None = None
    """None leaves it to the setting."""


NO_WISH: Final = Wish()


def read_wish(headers: Headers, *, pins_are_hard: bool) -> Wish:
    """Reads the headers of a request. Raises Reject (400) naming the one that is wrong."""
    for field, _ in headers.raw:
        if field in _NAMES:
            break
    else:
        return NO_WISH  # as most often
    found: dict[str, str] = {}
    for field, value in headers.raw:
        if field in _NAMES:
            found.setdefault(_NAMES[field], value.decode("latin-1").strip())
    sticky = found.get(STICKY)
    return Wish(_read_pin(found, pins_are_hard), None if sticky is None else read_boolean(STICKY, sticky))


def read_boolean(name: str, text: str) -> bool:
    """True or false. Raises Reject (400) naming what was asked for."""
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise Reject(400, "bad_value", f"{name} must be true or false, not {text[:64]!r}", name)
    return value


def _read_pin(found: dict[str, str], pins_are_hard: bool) -> Pin | None:
    is_once = read_boolean(ONCE, found[ONCE]) if ONCE in found else False
    is_hard = read_boolean(HARD, found[HARD]) if HARD in found else None
    rank = found.get(RANK)
    if rank is not None and not _RANK_NUMBER.match(rank):
        raise Reject(400, "bad_value", f"{RANK} must be a number from 0, not {rank[:64]!r}", RANK)
    if (name := found.get(WORKER)) is None:
        for header, is_asked in ((RANK, rank is not None), (ONCE, is_once), (HARD, bool(is_hard))):
            if is_asked:
                raise Reject(400, "missing_pin", f"{header} needs {WORKER} beside it", header)
        return None
    if not _WORKER_NAME.match(name):
        raise Reject(400, "bad_value", f"{WORKER} must be the id or URL of a worker, not {name[:64]!r}", WORKER)
    return Pin(name, None if rank is None else int(rank), pins_are_hard if is_hard is None else is_hard, is_once)


def pinned_workers(pin: Pin, found: Sequence[Worker]) -> list[Worker]:
    """Those of the workers found by its name that have its rank; a worker without rank counts as rank 0."""
    return [worker for worker in found if pin.rank is None or (worker.dp_rank or 0) == pin.rank]


def tell_worker(worker: Worker, headers: Headers) -> None:
    """Says in an answer where it came from, in the words of a pin; whatever the worker itself said there goes."""
    headers.set_raw(_WORKER_FIELD, worker.base_id.encode())
    headers.set_raw(_RANK_FIELD, str(worker.dp_rank or 0).encode())
