"""A server's protocol that gives proxied requests to the core as they are parsed, without ASGI in between.

The router's own routes go on to the ASGI app. Where an ASGI middleware is mounted, everything does (`Protocol`).
"""

from __future__ import annotations

import contextvars
from collections.abc import Coroutine
from typing import Any, Final, cast

import httptools

from router_core.asgi import Front
from router_core.fast_cycle import FastCycle
from router_core.headers import IN_LOWER_CASE, RawHeaders
from router_core.outbox import Outbox, OutboxTransport
from router_core.protocol import Flow, Protocol
from router_core.request_task import Lane, RequestTask

_HASH: Final = 0x23  # a number is found in bytes at a tenth of the cost
_QUESTION: Final = 0x3F


class FastProtocol(Protocol):
    """One client's connection."""

    _moves_keep_alive = False

    def __init__(self, front: Front, lane: Lane, outbox: Outbox, **uvicorn: Any) -> None:
        super().__init__(outbox, **uvicorn)
        self._front = front
        self._lane = lane
        self._idle_since = 0.0
        self._context = contextvars.copy_context()

    # ------------------------------------------------------------------------------------------------- httptools' calls
    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._is_amid_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        name = IN_LOWER_CASE.get(name) or name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        cast("RawHeaders", self.headers).append((name, value))

    def on_headers_complete(self) -> None:
        self._is_amid_head = False
        path, query = _split(self.url)
        front = self._front
        turn = front.turn(path)
        if turn is None or (front.is_ours is not None and not front.is_ours(turn[1], self.headers)):
            self._to_the_app()
            return
        former, cycle = self.cycle, FastCycle(self, turn[0], query, turn[1])
        self.cycle = cycle
        if former is None or former.response_complete:
            self._serve(cycle)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))  # it has what uvicorn asks of a cycle
            self._watch_client()
        if self.parser.should_upgrade():
            self._note_framing()
        self.headers = []

    def _to_the_app(self) -> None:
        headers, url, expects = self.headers, self.url, self.expect_100_continue
        super().on_message_begin()
        self.headers = self.scope["headers"] = headers
        self.url, self.expect_100_continue = url, expects
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if isinstance(self.cycle, FastCycle):
            self.cycle.take_in(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not isinstance(self.cycle, FastCycle):
            super().on_message_complete()
        elif self._framing is None:
            self.cycle.take_end()

    # ---------------------------------------------------------------------------------------------------- its exchanges
    def _serve(self, cycle: FastCycle) -> None:
        self._serving = cycle
        work = self._front.proxy.serve(cycle, cycle.session_id)
        if cast("Flow", self.flow).write_paused:
            work = self._when_read(work)
        task = cycle.task = RequestTask(work, self.loop, self._lane, self._context.copy(), cycle.served)
        cast("set[Any]", self.tasks).add(task)
        task.begin()

    async def _when_read(self, work: Coroutine[Any, Any, None]) -> None:
        """Who does not read the answers to earlier requests waits with the next one."""
        try:
            await self.flow.drain()
        except BaseException:
            work.close()
            raise
        await work

    def on_response_complete(self) -> None:
        self.answered()

    def answered(self) -> None:
        if cast("OutboxTransport", self.transport).is_closing():
            return
        cast("Flow", self.flow).resume_reading()
        if not self.pipeline:
            self._idle_since = self.loop.time()
            if self.timeout_keep_alive_task is None:
                self._look_in(self.timeout_keep_alive)
            return
        cycle: Any
        cycle, app = self.pipeline.pop()
        if isinstance(cycle, FastCycle):
            self._serve(cycle)
        else:
            self._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()

    def _lose(self, cycle: Any) -> None:
        if isinstance(cycle, FastCycle):
            cycle.lose()
        else:
            super()._lose(cycle)

    def _is_received(self, cycle: Any) -> bool:
        return cycle._is_received if isinstance(cycle, FastCycle) else super()._is_received(cycle)

    # ------------------------------------------------------------------ keep-alive: a timer that is not moved each time
    def _look_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self.cycle is not None and not self.cycle.response_complete:
            return  # the end of that answer sets it again
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._look_in(left)
        elif self._is_amid_head:  # the next request is coming
            self._look_in(self.timeout_keep_alive)
        else:
            super().timeout_keep_alive_handler()


def _split(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request's target."""
    if target.startswith(b"/") and _HASH not in target:
        if _QUESTION not in target:
            return target, b""
        path, _, query = target.partition(b"?")
        return path, query
    url: Any = httptools.parse_url(target)  # its stub tells of no None
    return url.path, url.query or b""
