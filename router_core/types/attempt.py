"""One try at one worker, and how tries and exchanges end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from router_core.errors import PluginError, RouterError
from router_core.types.request import Request
from router_core.types.worker import Worker


class OutcomeKind(StrEnum):
    """How an exchange or an attempt ended."""

    OK = "ok"
    """The answer passed whole; also a worker's 4xx."""
    WORKER_ERROR = "worker_error"
    """The worker answered 5xx, or something that is not HTTP."""
    WORKER_LOST = "worker_lost"
    """No connection to the worker, or it broke before the answer was whole."""
    CLIENT_LEFT = "client_left"
    REJECTED = "rejected"
    """Refused by the router or a plugin before a worker answered."""
    TIMED_OUT = "timed_out"
    """A deadline of the router passed, that of shutdown included."""
    FAILED = "failed"
    """A fault of a plugin or of the router itself."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an exchange or an attempt ended, with the status the client or router saw and the error's code."""

    kind: OutcomeKind
    status: int | None = None
    code: str | None = None
    message: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.kind is OutcomeKind.OK


class Attempt:
    """One try of an exchange at one worker. Times are clock seconds, None until they happen."""

    __slots__ = (
        "_checks",
        "_close",
        "_handed_over",
        "ended_at",
        "error",
        "first_byte_at",
        "generation",
        "is_handed_over",
        "outcome",
        "request",
        "request_sent",
        "started_at",
        "status",
        "worker",
    )

    def __init__(self, worker: Worker, request: Request, started_at: float) -> None:
        self.worker = worker
        self.generation = worker.generation
        """The worker's generation when it was chosen."""
        self.request = request
        """A copy of the exchange's request: `attempt_start` changes it for this attempt alone."""
        self.started_at = started_at
        self.request_sent = False
        """Whether a byte of the request may have reached the worker."""
        self.is_handed_over = False
        """Whether the worker was given the whole request, or the attempt is over."""
        self.first_byte_at: float | None = None
        self.ended_at: float | None = None
        self.status: int | None = None
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        """What stopped it, if something did."""
        self._close: Callable[[], None] | None = None
        self._checks: list[Callable[[], None]] = []
        self._handed_over: asyncio.Future[None] | None = None

    def before_send(self, check: Callable[[], None]) -> None:
        """Calls ``check`` at the last moment, before the first byte is written: it may raise AttemptWithdrawn."""
        self._checks.append(check)

    async def wait_handed_over(self) -> None:
        """Until `is_handed_over`."""
        if not self.is_handed_over:
            if self._handed_over is None:
                self._handed_over = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._handed_over)

    # for the core
    def begin_sending(self) -> None:
        """The first byte is about to be written. Raises AttemptWithdrawn, and PluginError for a check that fails."""
        for check in self._checks:
            try:
                check()
            except RouterError:
                raise
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                name = getattr(check, "__qualname__", repr(check))
                raise PluginError(name, "before_send", f"{type(error).__name__}: {error}") from error
        self.request_sent = True

    def hand_over(self) -> None:
        """The whole request was written, or never will be."""
        self.is_handed_over = True
        self._checks = []  # they hold what they look at, this attempt too
        if self._handed_over is not None and not self._handed_over.done():
            self._handed_over.set_result(None)

    def on_end(self, close: Callable[[], None]) -> None:
        """How to give up the worker's connection."""
        self._close = close

    def close(self) -> None:
        """Gives up the worker's connection, once."""
        close, self._close = self._close, None
        if close is not None:
            close()
