"""One request of a client and its answer, and the session it belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from router_core.errors import RouterError
from router_core.types.attempt import Attempt
from router_core.types.request import Request
from router_core.types.state import State
from router_core.types.worker import Worker

STOP_AGAIN_S = 1.0
"""Seconds after which an exchange that was interrupted and still runs is interrupted again."""


class Session:
    """One agent run: the exchanges below ``/sessions/{id}/`` or with its id in a header."""

    __slots__ = (
        "bound_headers",
        "cache_salt",
        "closing",
        "id",
        "last_used_at",
        "on_closing",
        "opened_at",
        "profile",
        "running",
        "secret",
        "state",
    )

    def __init__(self, id: str, *, opened_at: float, profile: str | None = None) -> None:
        self.id = id
        self.profile = profile
        self.opened_at = self.last_used_at = opened_at
        self.bound_headers: list[tuple[bytes, bytes]] = []
        """Fields that every turn carries to the worker; a turn cannot override them."""
        self.cache_salt: str | None = None
        self.secret: str | None = None
        self.running: set[Exchange] = set()
        self.closing = False
        self.on_closing: set[Callable[[], object]] = set()
        """Called once `closing` is set: for who holds a turn that would else be waited for in vain."""
        self.state = State()
        """What plugins keep about this session."""

    @property
    def inflight(self) -> int:
        return len(self.running)

    def __repr__(self) -> str:
        return f"<Session {self.id} inflight={self.inflight}{' closing' if self.closing else ''}>"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a request belongs to, beside its session. What a plugin's `identify` answers."""

    group: str | None = None
    """Requests of one prompt (a GRPO group)."""
    trajectory: str | None = None
    version_tag: str | None = None
    """The oldest weight version that may serve it."""

    @property
    def is_text(self) -> bool:
        """Whether every field is None or a text: other plugins rely on that."""
        return all(part is None or isinstance(part, str) for part in (self.group, self.trajectory, self.version_tag))

    def completed_by(self, other: Identity) -> Identity:
        """This identity, with what it does not know taken from another one."""
        return Identity(
            other.group if self.group is None else self.group,
            other.trajectory if self.trajectory is None else self.trajectory,
            other.version_tag if self.version_tag is None else self.version_tag,
        )


NOBODY: Final = Identity()


class Decision:
    """One selection: who could have taken the request, why the others were out, and the sums of the scores."""

    __slots__ = ("candidates", "chosen", "out", "scores", "waits_for")

    def __init__(
        self,
        candidates: Sequence[Worker],
        scores: Mapping[Worker, float],
        out: Mapping[str, str],
        chosen: Worker | None,
    ) -> None:
        self.candidates = candidates
        self.scores = scores
        self.out = out
        """Worker url -> why it was no candidate."""
        self.chosen = chosen
        self.waits_for: Mapping[Worker, str] | None = None
        """Where nobody was chosen: workers that are out for now, and why; the exchange is held until one may take it.
        """


class Spawn(Protocol):
    """Starts work in the background."""

    def __call__(self, work: Coroutine[Any, Any, Any], *, name: str) -> object: ...


class Exchange:
    """One request of a client and its answer."""

    __slots__ = (
        "_interrupt",
        "_on_abort",
        "_pending",
        "_settings",
        "_spawn",
        "abort_was_asked",
        "attempt_error",
        "attempts",
        "client_host",
        "decision",
        "ended_at",
        "excluded_workers",
        "held_s",
        "hold_order",
        "hold_place",
        "hold_round",
        "id",
        "identity",
        "interruption",
        "is_debugged",
        "left_out",
        "outliving",
        "request",
        "session",
        "session_id",
        "started_at",
        "state",
        "switches",
    )

    def __init__(self, id: str, request: Request, *, started_at: float) -> None:
        self.id = id
        self.request = request
        self.session: Session | None = None
        """The open session it belongs to, if there is one."""
        self.session_id: str | None = None
        """The session's id from path or header, whether or not such a session was opened."""
        self.identity = NOBODY
        self.client_host: str | None = None
        self.attempts: list[Attempt] = []
        self.excluded_workers: set[Worker] = set()
        """Workers that the next selection must not choose; plugins add to it."""
        self.decision: Decision | None = None
        """The newest selection."""
        self.left_out: dict[Worker, tuple[str, bool]] = {}
        """What filters said by `leave_out` in the newest selection."""
        self.hold_order = 0.0
        """Of requests that wait for the same, the smallest goes first; of equals the one that waited first."""
        self.held_s = 0.0
        """Seconds that it has been held so far, up to the end of the newest hold."""
        self.hold_place: int | None = None
        """Its place among held requests, kept from its first hold on; None if it was never held."""
        self.hold_round = 0
        """For the hold queue: the newest wake in which it had its turn."""
        self.started_at = started_at
        self.ended_at: float | None = None
        self.state = State()
        """What plugins keep about this exchange."""
        self.abort_was_asked = False
        """Whether somebody asked through the router to abort it at its worker: an answer cut short is then final."""
        self.attempt_error: BaseException | None = None
        """What the newest attempt raised: no fault of a plugin that passes it on."""
        self.interruption: RouterError | None = None
        """Why the core stopped the exchange from outside: ClientLeft, or a Reject."""
        self.is_debugged = False
        """Whether its answer shows how it was routed (``x-router-debug``)."""
        self.switches: tuple[str | None, str | None] = (None, None)
        """Profile and plugins that the request's own headers asked for."""
        self.outliving: asyncio.Task[Any] | None = None
        """What `outlive_client` started."""
        self._settings: dict[int, Any] | None = None
        self._spawn: Spawn | None = None
        self._interrupt: Callable[[], object] | None = None
        self._on_abort: Callable[[], object] | None = None
        self._pending: RouterError | None = None

    @property
    def target(self) -> str:
        """The raw path that the worker is asked for, without the query: for a session's turn what follows its id."""
        return self.request.path.decode("latin-1")

    @property
    def worker(self) -> Worker | None:
        """The worker of the newest attempt."""
        return self.attempts[-1].worker if self.attempts else None

    def leave_out(self, worker: Worker, reason: str, *, for_now: bool = False) -> None:
        """Says in `filter_workers` why a worker is left out of what the hook returns.

        ``for_now``: it may take the request later. Where no worker is left, the exchange is then not refused but held,
        and selection is tried again when a worker's state, version or load changes (or ``router.holds`` is woken).
        """
        self.left_out[worker] = (reason, for_now)

    def settings(self, plugin: object) -> Any:
        """The plugin's own settings as they hold for this exchange."""
        if self._settings is None:
            raise RuntimeError("an exchange has settings once its plan is known")
        return self._settings[id(plugin)]

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str = "exchange work") -> None:
        """Runs longer work after or beside the exchange; bounded in number, awaited at shutdown."""
        if self._spawn is None:
            work.close()
            raise RuntimeError("an exchange runs work once its plan is known")
        self._spawn(work, name=name)

    def outlive_client(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts work, such as a worker's call, that goes on although the client has left; at most one an exchange.

        The exchange does not end before it: its attempts, their inflight and its place in the session stay, and
        `response_end` waits. Whoever starts it cancels it where nobody wants it any more; the core cancels it when the
        router stops. Attempts that begin after the client has left fail with ClientLeft.
        """
        if self.outliving is not None:
            work.close()
            raise RuntimeError("one work of this exchange outlives its client already")
        self.outliving = asyncio.create_task(work, name=f"outlives the client of {self.id}")
        return self.outliving

    def ask_abort(self) -> None:
        """Somebody asked through the router to abort it at its worker; see `abort_was_asked`."""
        self.abort_was_asked = True
        if self._on_abort is not None:
            self._on_abort()

    def on_abort(self, call: Callable[[], object] | None) -> None:
        """What to call when an abort is asked for; the newest one holds. For who keeps it between two attempts."""
        self._on_abort = call

    def interrupt(self, why: RouterError) -> None:
        """Stops the exchange wherever it is. The first reason stands; a Reject before the head has left is answered."""
        if self.interruption is None and self._interrupt is not None:
            self.interruption = self._pending = why
            self._stop()

    def _stop(self) -> None:
        """Again and again until the core has the interruption: a plugin may swallow a cancellation."""
        if self._pending is not None and self._interrupt is not None:
            self._interrupt()
            asyncio.get_running_loop().call_later(STOP_AGAIN_S, self._stop)

    # for the core
    def serve_by(self, settings: dict[int, Any], spawn: Spawn) -> None:
        """Its plan is known: the settings of its plugins by the ``id`` of each, and who runs background work."""
        self._settings, self._spawn = settings, spawn

    def on_interrupt(self, stop: Callable[[], object] | None) -> None:
        """How to stop the task that runs this exchange; None once it has ended."""
        self._interrupt = stop

    @property
    def is_interrupted(self) -> bool:
        """Whether there is an interruption that nobody has taken."""
        return self._pending is not None

    def take_interruption(self) -> RouterError | None:
        """The interruption, once: whoever takes it acts on it."""
        pending, self._pending = self._pending, None
        return pending

    def __repr__(self) -> str:
        return f"<Exchange {self.id} {self.request.method} {self.target}>"
