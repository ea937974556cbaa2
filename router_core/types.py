"""The nouns of the router: what hooks are given and what they give back.

Everything here belongs to one event loop. Plugins read these objects and change them only by their methods or where
a hook's contract says so.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar, overload

import orjson

from router_core.errors import MalformedBody, Reject, RouterError
from router_core.headers import Headers
from router_core.splice import set_top_level_key

T = TypeVar("T")
D = TypeVar("D")

MAX_COLLECTED_BYTES = 1 << 30


# ------------------------------------------------------------------------------------------------------ plugin state
class StateKey(Generic[T]):
    """Names a value that a plugin keeps on an exchange, session or worker. Who holds the key sees the value.

    >>> RID = StateKey[str]("rid")
    >>> exchange.state[RID] = "r-1"
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"StateKey({self.name!r})"


class State:
    """Values by `StateKey`; private to a plugin as long as it keeps the key to itself."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[StateKey[Any], Any] = {}

    def __getitem__(self, key: StateKey[T]) -> T:
        return self._values[key]  # type: ignore[no-any-return]  # the key carries the type

    def __setitem__(self, key: StateKey[T], value: T) -> None:
        self._values[key] = value

    def __contains__(self, key: StateKey[Any]) -> bool:
        return key in self._values

    @overload
    def get(self, key: StateKey[T]) -> T | None: ...
    @overload
    def get(self, key: StateKey[T], default: D) -> T | D: ...
    def get(self, key: StateKey[Any], default: Any = None) -> Any:
        return self._values.get(key, default)

    def pop(self, key: StateKey[T]) -> T | None:
        """Takes the value away and returns it, or None."""
        return self._values.pop(key, None)


# ------------------------------------------------------------------------------------------------------------ worker
class WorkerState(StrEnum):
    """Whether a worker gets new requests: only a ready one does."""

    READY = "ready"
    STARTING = "starting"
    """Registered, and not seen to be up yet."""
    QUARANTINED = "quarantined"
    """Out for a reason; running requests go on; it comes back by itself or by registering again."""
    DRAINING = "draining"
    """Leaving: the running requests finish, then it is gone."""
    REMOVED = "removed"
    """Gone; a worker registered later on the same URL is another object."""


class Worker:
    """One inference server (or one data-parallel rank of it). Compared by identity.

    ``generation`` rises each time the worker is registered; a result of an older generation touches nothing.
    """

    __slots__ = (
        "api_key",
        "base_url",
        "dp_rank",
        "generation",
        "id",
        "inflight",
        "key",
        "labels",
        "last_byte_at",
        "last_pick",
        "priority",
        "reason",
        "registered_at",
        "state",
        "state_of",
        "url",
        "weight_version",
        "worker_type",
    )

    def __init__(self, *, id: str, url: str, key: str, base_url: str, dp_rank: int | None, generation: int) -> None:
        self.id = id
        self.url = url
        """Exactly as it was registered first."""
        self.key = key
        """The identity: the normalised URL, with ``@rank`` where it names one."""
        self.base_url = base_url
        """Scheme, host, port and path prefix, without a trailing slash: a target is appended to it."""
        self.dp_rank = dp_rank
        self.generation = generation
        self.state = WorkerState.READY
        self.reason: str | None = None
        """Why the worker is not ready."""
        self.inflight = 0
        """Attempts that were sent to it and whose last byte has not passed yet. Counted by the core alone."""
        self.weight_version: str | None = None
        self.worker_type = "regular"
        self.labels: dict[str, str] = {}
        self.priority: float | None = None
        self.api_key: str | None = None
        self.registered_at = 0.0
        self.last_byte_at = 0.0
        """Clock time (s) of the newest byte that came from it."""
        self.last_pick = 0
        """Serial number of its newest selection; ties are broken by the smallest."""
        self.state_of = State()
        """What plugins keep about this worker."""

    @property
    def is_ready(self) -> bool:
        return self.state is WorkerState.READY

    def __repr__(self) -> str:
        return f"<Worker {self.id} {self.url} {self.state} inflight={self.inflight}>"


Scores = Mapping[Worker, float]
"""Worker -> how good it is, in [0, 1]; a missing worker counts as 0."""


# ----------------------------------------------------------------------------------------------------------- request
class BodySource(Protocol):
    """Where a request's body comes from. One source serves every attempt of an exchange."""

    @property
    def is_declared(self) -> bool:
        """Whether the client announced a body, be it empty."""

    @property
    def whole(self) -> bytes | None:
        """The body, once every byte of it is in memory."""

    @property
    def length(self) -> int | None:
        """Its length in bytes as the client declared it."""

    async def read_all(self) -> bytes:
        """The body whole, kept for later calls. Raises ClientLeft."""

    def stream(self) -> AsyncIterator[bytes]:
        """The body piece by piece, not kept: only one attempt can stream. Raises ClientLeft."""


class Request:
    """A request on its way to a worker. What is not changed here arrives byte for byte as the client sent it."""

    __slots__ = ("_body", "_edits", "_source", "headers", "method", "path", "query")

    def __init__(self, method: str, path: bytes, query: bytes, headers: Headers, source: BodySource) -> None:
        self.method = method
        self.path = path
        """Raw path, as the client wrote it (without a session prefix)."""
        self.query = query
        """Raw query, without the question mark."""
        self.headers = headers
        """The client's end-to-end fields; what is changed here reaches the worker."""
        self._source = source
        self._body: bytes | None = None
        self._edits: list[tuple[str, bytes]] = []

    async def body(self) -> bytes:
        """The body, whole, with every change applied.

        Raises ClientLeft, and Reject (413) above ``[router] max_body_bytes``.
        """
        if self._body is None:
            body = await self._source.read_all()
            if not self._edits:
                return body
            for name, value in self._edits:
                body = set_top_level_key(body, name, value)
            self._edits, self._body = [], body
        return self._body

    async def json(self) -> Any:
        """The body as JSON (NaN and Infinity pass). Raises MalformedBody, which becomes a 400 if nobody catches it."""
        body = await self.body()
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            try:
                return json.loads(body)
            except ValueError as error:
                raise MalformedBody(f"the body is not JSON: {error}") from error

    def set_body(self, body: bytes) -> None:
        """Replaces the body: exactly these bytes reach the worker, with a right Content-Length."""
        self._edits = []
        self._body = body
        self.headers.remove("content-encoding")

    def set_key(self, name: str, value: Any) -> None:
        """Sets one top-level key of a JSON body; the other bytes stay as they are. ``value`` is JSON-serialisable.

        A body that is no JSON object is left alone: the worker's own 400 tells the client.
        """
        text = orjson.dumps(value)
        if self._body is not None:
            self._body = set_top_level_key(self._body, name, text)
        else:
            self._edits.append((name, text))

    def accept_identity(self) -> None:
        """Asks the worker for an uncompressed answer; call it before ``call_next`` if you will read the answer."""
        self.headers.set("accept-encoding", "identity")

    @property
    def has_edits(self) -> bool:
        """Whether changes wait for the body to be read."""
        return bool(self._edits)

    @property
    def source(self) -> BodySource:
        return self._source

    @property
    def ready_body(self) -> bytes | None:
        """The body as it would be sent, if it is in memory already."""
        if self._body is not None:
            return self._body
        return None if self._edits else self._source.whole

    def fork(self) -> Request:
        """A copy for one attempt: changing it leaves this one alone. Bodies are shared, not copied."""
        copy = Request(self.method, self.path, self.query, self.headers.copy(), self._source)
        copy._body, copy._edits = self._body, list(self._edits)
        return copy


# ------------------------------------------------------------------------------------------------------------ answer
class Answer:
    """Status, headers and body of a reply. The body is a stream (``chunks``) until somebody awaits `body`."""

    __slots__ = ("_body", "_chunks", "error_code", "headers", "status")

    def __init__(
        self,
        status: int,
        headers: Headers | None = None,
        *,
        body: bytes | None = None,
        chunks: AsyncIterator[bytes] | None = None,
    ) -> None:
        self.status = status
        self.headers = headers if headers is not None else Headers()
        self._chunks = chunks
        self._body = body if chunks is None else None
        self.error_code: str | None = None
        """The code of the router's own error, where this answer is one."""
        if chunks is None:
            self.set_body(body or b"")

    @classmethod
    def json(cls, status: int, value: Any, headers: Headers | None = None) -> Answer:
        """An answer with ``value`` as its JSON body."""
        headers = headers if headers is not None else Headers()
        headers.set("content-type", "application/json")
        return cls(status, headers, body=orjson.dumps(value))

    @classmethod
    def error(cls, reject: Reject, **more: Any) -> Answer:
        """The router's error envelope; ``more`` is put beside the message."""
        kind = "invalid_request_error" if reject.status < 500 else "router_error"
        error = {"message": reject.message, "type": kind, "code": reject.code, **more}
        if reject.param is not None:
            error["param"] = reject.param
        headers = Headers()
        headers.add("x-router-error", reject.code)
        if reject.retry_after_s is not None:
            headers.add("retry-after", str(max(1, round(reject.retry_after_s))))
        answer = cls.json(reject.status, {"error": error}, headers)
        answer.error_code = reject.code
        return answer

    @property
    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Assigning a wrapped iterator removes Content-Length."""
        if self._chunks is None:
            self._chunks = _one_chunk(self._body or b"")
        return self._chunks

    @chunks.setter
    def chunks(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks, self._body = chunks, None
        self.headers.remove("content-length")

    @property
    def ready_body(self) -> bytes | None:
        """The whole body, if it is in memory; else None."""
        return self._body

    async def body(self, max_bytes: int = MAX_COLLECTED_BYTES) -> bytes:
        """Reads the stream to its end and keeps it. Raises WorkerFault if it breaks, Reject (502) above ``max_bytes``."""
        if self._body is None:
            parts, size = [], 0
            async for chunk in self.chunks:
                parts.append(chunk)
                size += len(chunk)
                if size > max_bytes:
                    await self.aclose()
                    raise Reject(502, "answer_too_large", f"the worker's answer is longer than {max_bytes} bytes")
            self._body, self._chunks = b"".join(parts), None
        return self._body

    def set_body(self, body: bytes) -> None:
        """Replaces the body by these bytes, with a right Content-Length."""
        self._body, self._chunks = body, None
        self.headers.set("content-length", str(len(body)))

    async def aclose(self) -> None:
        """Gives the stream up: its worker's connection is closed if the last byte has not passed."""
        close = getattr(self._chunks, "aclose", None)
        if close is not None:
            await close()


async def _one_chunk(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body


# ---------------------------------------------------------------------------------------------------------- outcomes
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


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a request belongs to, beside its session. What a plugin's `identify` answers."""

    group: str | None = None
    """Requests of one prompt (a GRPO group)."""
    trajectory: str | None = None
    version_tag: str | None = None
    """The oldest weight version that may serve it."""


class Attempt:
    """One try of an exchange at one worker. Times are clock seconds, None until they happen."""

    __slots__ = (
        "_close",
        "ended_at",
        "error",
        "first_byte_at",
        "generation",
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
        self.first_byte_at: float | None = None
        self.ended_at: float | None = None
        self.status: int | None = None
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        """What stopped it, if something did."""
        self._close: Callable[[], None] | None = None

    def on_end(self, close: Callable[[], None]) -> None:
        """For the core: how to give up the worker's connection."""
        self._close = close

    def close(self) -> None:
        """For the core: gives up the worker's connection, once."""
        close, self._close = self._close, None
        if close is not None:
            close()


# ----------------------------------------------------------------------------------------------------------- session
class Session:
    """One agent run: the exchanges below ``/sessions/{id}/`` or with its id in a header."""

    __slots__ = (
        "bound_headers",
        "cache_salt",
        "closing",
        "id",
        "last_used_at",
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
        self.state = State()
        """What plugins keep about this session."""

    @property
    def inflight(self) -> int:
        return len(self.running)

    def __repr__(self) -> str:
        return f"<Session {self.id} inflight={self.inflight}{' closing' if self.closing else ''}>"


# ---------------------------------------------------------------------------------------------------------- exchange
@dataclass(slots=True)
class Decision:
    """One selection: who could have taken the request, why the others were out, and the sums of the scores."""

    candidates: Sequence[Worker] = ()
    scores: Mapping[Worker, float] | None = None
    out: Mapping[str, str] | None = None
    """Worker url -> why it was no candidate."""
    chosen: Worker | None = None


class ExchangeServices(Protocol):
    """What the core does for an exchange on behalf of plugins."""

    def settings_of(self, plugin: object) -> Any: ...

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> object: ...


class Exchange:
    """One request of a client and its answer."""

    __slots__ = (
        "_interrupt",
        "_pending",
        "_services",
        "attempts",
        "client_host",
        "decision",
        "ended_at",
        "excluded_workers",
        "id",
        "identity",
        "interruption",
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
        self.identity = Identity()
        self.client_host: str | None = None
        self.attempts: list[Attempt] = []
        self.excluded_workers: set[Worker] = set()
        """Workers that the next selection must not choose; plugins add to it."""
        self.decision: Decision | None = None
        """The newest selection."""
        self.started_at = started_at
        self.ended_at: float | None = None
        self.state = State()
        """What plugins keep about this exchange."""
        self.interruption: RouterError | None = None
        """Why the core stopped the exchange from outside: ClientLeft, or a Reject."""
        self.switches: tuple[str | None, str | None] = (None, None)
        """Profile and plugins that the request's own headers asked for."""
        self._services: ExchangeServices | None = None
        self._interrupt: Callable[[], None] | None = None
        self._pending: RouterError | None = None

    @property
    def target(self) -> str:
        """The raw path that the worker is asked for, without the query: for a session's turn what follows its id."""
        return self.request.path.decode("latin-1")

    @property
    def worker(self) -> Worker | None:
        """The worker of the newest attempt."""
        return self.attempts[-1].worker if self.attempts else None

    def settings(self, plugin: object) -> Any:
        """The plugin's own settings as they hold for this exchange."""
        if self._services is None:
            raise RuntimeError("an exchange has settings once its plan is known")
        return self._services.settings_of(plugin)

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str = "exchange work") -> None:
        """Runs longer work after or beside the exchange; bounded in number, awaited at shutdown."""
        if self._services is None:
            work.close()
            raise RuntimeError("an exchange runs work once its plan is known")
        self._services.spawn(work, name=name)

    def interrupt(self, why: RouterError) -> None:
        """Stops the exchange wherever it is. The first reason stands; a Reject that comes before the head is answered."""
        if self.interruption is None and self._interrupt is not None:
            self.interruption = self._pending = why
            self._interrupt()

    # for the core
    def serve_by(self, services: ExchangeServices) -> None:
        """Its plan is known: settings and background work come from here."""
        self._services = services

    def on_interrupt(self, stop: Callable[[], None] | None) -> None:
        """How to stop the task that runs this exchange; None once it has ended."""
        self._interrupt = stop

    def take_interruption(self) -> RouterError | None:
        """The interruption, once: whoever takes it acts on it."""
        pending, self._pending = self._pending, None
        return pending

    def __repr__(self) -> str:
        return f"<Exchange {self.id} {self.request.method} {self.target}>"
