"""A scripted inference worker: a raw HTTP/1.1 server that logs what came and answers what a script says."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from router_core.testing.connection import Connection
from router_core.testing.engines import Engine, EngineName
from router_core.testing.health import Health
from router_core.testing.http1 import read_head
from router_core.testing.listener import Listener
from router_core.testing.request import ScriptedRequest
from router_core.testing.wire import BUFFER_BYTES, Signal, Wire
from router_core.testing.words import ToolCall, Words

Handler = Callable[[ScriptedRequest, Connection], Awaitable[bool | None]]
"""Answers one request; true: keep the connection open."""

Fault = Callable[[Handler], Handler]
"""Takes the handler behind it and returns the one that stands before it, which gets requests with their body unread."""

TIMEOUT_S = 10.0


@dataclass(slots=True)
class _Armed:
    """A fault that waits for the requests it is meant for; ``times`` None: for all."""

    fault: Fault
    times: int | None
    is_meant: Callable[[ScriptedRequest], bool]


class ScriptedWorker:
    """``async with ScriptedWorker() as worker``: listens on loopback, speaks like an engine, and does as it is told.

    ``engine`` is ``"sglang"`` or ``"vllm"``; ``worker.engine`` holds what it would answer. ``worker.handler`` may be
    replaced by any ``async def handler(request, connection) -> keep_open``; it gets requests whose body has been read.
    ``keep_bodies=False`` throws request bodies away (the engine then sees none). ``receive_buffer_bytes`` shrinks the
    kernel's buffer (SO_RCVBUF), so that an upload left unread is felt at once.
    """

    def __init__(
        self,
        engine: EngineName = "sglang",
        *,
        host: str = "127.0.0.1",
        keep_bodies: bool = True,
        receive_buffer_bytes: int | None = None,
    ) -> None:
        self.host = host
        self.engine = Engine(engine)
        self.health = Health()
        self.handler: Handler = self.engine.answer
        """Who answers a request whose body has been read; to begin with the engine."""
        self.requests: list[ScriptedRequest] = []
        """All requests in order of arrival, but for health checks."""
        self.health_requests: list[ScriptedRequest] = []
        self.connections: list[Connection] = []
        """All connections accepted, in order."""
        self.live = 0
        """Handlers running, health checks apart."""
        self.errors: list[Exception] = []
        """What handlers raised; the first is raised again when the worker is left."""
        self._keep_bodies = keep_bodies
        self._receive_buffer_bytes = receive_buffer_bytes
        self._armed: list[_Armed] = []
        self._changed = Signal()
        self._tasks: dict[asyncio.Task[None], Wire] = {}
        self._listener = Listener(host, receive_buffer_bytes)

    # Its life.

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()
        self._listener.free_port()
        if self.errors and error is None:
            raise self.errors[0]

    @property
    def port(self) -> int:
        """Free when it first started, and kept; 0 before."""
        return self._listener.port

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def is_listening(self) -> bool:
        return self._listener.is_listening

    async def start(self) -> None:
        """Listen; after a ``stop`` or ``refuse`` on the same port."""
        await self._listener.listen(self._new_wire)

    def refuse(self) -> None:
        """Accept no more connections: a new one is refused. Those there are go on."""
        self._listener.refuse()

    async def stop(self, *, reset: bool = False) -> None:
        """As if its process died: no more connections, handlers cancelled, connections closed (``reset``: with RST)."""
        self.refuse()
        await self._listener.wait_made()
        tasks = dict(self._tasks)
        for task, wire in tasks.items():
            (wire.reset if reset else wire.close)()
            task.cancel()
        await asyncio.gather(*tasks, *(wire.wait_closed() for wire in tasks.values()), return_exceptions=True)

    # Its script.

    def say(
        self,
        text: str = "",
        *,
        ids: list[int] | None = None,
        finish: str = "stop",
        logprobs: list[float] | None = None,
        reasoning: str | None = None,
        tool_calls: list[ToolCall] | None = None,
        hold_after: int | None = None,
        times: int | None = 1,
    ) -> Words:
        """The words of the next generation (``times`` None: of all later ones); said in the order they were scripted.

        Without ``ids`` they are the text's own, with the end token when ``finish`` is ``"stop"``. With ``hold_after``
        the answer waits after so many tokens (0: before its head) until ``words.release()`` or ``worker.release()``.
        """
        words = Words.script(
            text,
            ids=ids,
            finish=finish,
            logprobs=logprobs,
            reasoning=reasoning,
            tool_calls=tool_calls,
            hold_after=hold_after,
        )
        self.engine.script(words, times)
        return words

    def hold(self) -> None:
        """Hold every generation before its answer begins, until ``release``."""
        self.engine.hold()

    def release(self) -> None:
        """End a ``hold``, and the ``hold_after`` of all words scripted so far."""
        self.engine.release()

    def fault(
        self, *faults: Fault, times: int | None = 1, when: Callable[[ScriptedRequest], bool] = lambda request: True
    ) -> None:
        """Bend the next ``times`` requests (None: all) of which ``when`` is true; several nest, the first outside."""

        def all_of(handler: Handler) -> Handler:
            for fault in reversed(faults):
                handler = fault(handler)
            return handler

        self._armed.append(_Armed(all_of, times, when))

    def clear_faults(self) -> None:
        self._armed.clear()

    # Waiting for it.

    async def wait_until(self, is_true: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        """Until ``is_true``, tried at each request, answer and connection; TimeoutError says what had come."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait_until(is_true)
        except TimeoutError:
            seen = f"{self.requests[-5:]} last of {len(self.requests)}, {len(self.health_requests)} health checks"
            raise TimeoutError(f"not so after {timeout_s} s; {self!r} has seen {seen}") from None

    async def wait_for_requests(self, count: int, timeout_s: float = TIMEOUT_S) -> list[ScriptedRequest]:
        """Until ``count`` requests have come, each to the end of its body where that is read."""
        await self.wait_until(lambda: len(self._read_requests()) >= count, timeout_s)
        return self.requests

    async def wait_for_health_requests(self, count: int, timeout_s: float = TIMEOUT_S) -> list[ScriptedRequest]:
        await self.wait_until(lambda: len(self.health_requests) >= count, timeout_s)
        return self.health_requests

    async def wait_until_idle(self, timeout_s: float = TIMEOUT_S) -> None:
        """Until no handler runs."""
        await self.wait_until(lambda: self.live == 0, timeout_s)

    # Serving.

    def _new_wire(self) -> Wire:
        return Wire(self._accept, buffer_bytes=min(BUFFER_BYTES, self._receive_buffer_bytes or BUFFER_BYTES))

    def _accept(self, wire: Wire) -> None:
        connection = Connection(wire, len(self.connections) + 1)
        self.connections.append(connection)
        task = asyncio.get_running_loop().create_task(self._serve(connection), name=f"scripted worker {self.port}")
        self._tasks[task] = wire
        task.add_done_callback(lambda done: self._tasks.pop(done))
        self._changed.notify()

    async def _serve(self, connection: Connection) -> None:
        try:
            while await self._serve_one(connection):
                pass
        except ConnectionError as error:
            if not connection.wire.is_over:  # else it is no error, and the connection says so
                self.errors.append(error)
        except Exception as error:  # noqa: BLE001 - a handler's own: raised again when the worker is left
            self.errors.append(error)
        finally:
            connection.close()
            await connection.wire.wait_closed()
            self._changed.notify()

    async def _serve_one(self, connection: Connection) -> bool:
        head = await read_head(connection.wire)
        if head is None:
            return False
        request = ScriptedRequest(head.raw, connection, on_read=self._changed.notify)
        connection.requests_read += 1
        connection.answers_head = request.method == "HEAD"
        if self.health.claims(request):
            self.health_requests.append(request)
            self._changed.notify()
            await request.read_body()
            return await self.health.answer(connection, self.engine.describe(request.path))
        self.requests.append(request)
        self._changed.notify()
        return await self._handle(request, connection)

    async def _handle(self, request: ScriptedRequest, connection: Connection) -> bool:
        self.live += 1
        try:
            keep_open = await self._take_fault(request)(self._read_and_answer)(request, connection)
            if keep_open:
                await request.read_body(keep=False)
            return bool(keep_open)
        finally:
            self.live -= 1
            request.is_handled = True
            request.peer_left = connection.peer_has_left
            self._changed.notify()

    async def _read_and_answer(self, request: ScriptedRequest, connection: Connection) -> bool | None:
        await request.read_body(keep=self._keep_bodies)
        if request.clean is False:
            return False
        return await self.handler(request, connection)

    def _take_fault(self, request: ScriptedRequest) -> Fault:
        for armed in self._armed:
            if armed.is_meant(request):
                if armed.times is not None:
                    armed.times -= 1
                    if armed.times <= 0:
                        self._armed.remove(armed)
                return armed.fault
        return lambda handler: handler

    def _read_requests(self) -> list[ScriptedRequest]:
        return [request for request in self.requests if request.clean is not None or request.is_handled]

    def __repr__(self) -> str:
        state = "listening" if self.is_listening else "stopped"
        return f"<ScriptedWorker {self.url}, {state}, {len(self.requests)} requests, {self.live} live>"
