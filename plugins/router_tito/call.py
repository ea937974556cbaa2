"""One call to a worker on behalf of a turn, and those who wait for its answer.

The call runs in a task of its own, so that it does not end with its client: a client that lost its connection asks
again, and is then given this answer. What the call brings is written down once, and every seat reads it from the
beginning, each at its own pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from router_core import Answer, Exchange, Headers

from .retries import Evidence


@dataclass(frozen=True, slots=True)
class Head:
    """Status and fields of an answer. ``is_whole``: its body is there, nothing streams."""

    status: int
    headers: Headers
    is_whole: bool
    error_code: str | None = None


class Call:
    """The answer to one request, as it comes. ``on_deserted`` is told when its last seat was given up meanwhile."""

    def __init__(self, key: bytes, evidence: Evidence, *, on_deserted: Callable[[Call], None]) -> None:
        self.key = key
        """Key of the canonical body: who sends an equal one may be given this answer."""
        self.evidence = evidence
        """Of the request that began it, and of those that joined."""
        self.head: Head | None = None
        self.error: BaseException | None = None
        """Why there is no answer, or no end of one."""
        self.is_over = False
        self.is_cancelled = False
        self.is_broken = False
        """Whether a client's connection broke before it had the answer, and no other client has had it since."""
        self.node_id: int | None = None
        """The committed answer in the trace."""
        self.untrainable = ""
        """Why the answer is not in the trace, though the client got one."""
        self.worker_url: str | None = None
        self.seats = 0
        self.deserted_at = 0.0
        """Clock time (s) at which its last seat was given up."""
        self._pieces: list[bytes] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._on_deserted = on_deserted
        self._task: asyncio.Task[None] | None = None

    # ---------------------------------------------------------------------------------------------- who runs the call
    def runs_in(self, task: asyncio.Task[None]) -> None:
        """The task that writes here; `cancel` stops it."""
        self._task = task
        if self.is_cancelled:
            task.cancel()

    def begin(self, head: Head) -> None:
        """The answer's head is known."""
        self.head = head
        self._notify()

    def write(self, piece: bytes) -> None:
        """A further piece of what the client gets."""
        if piece:
            self._pieces.append(piece)
            self._notify()

    def finish(self, error: BaseException | None = None) -> None:
        """There is no more; only the first call counts."""
        if self.is_over:
            return
        self.error, self.is_over = error, True
        self._pieces = [b"".join(self._pieces)]
        self._task, self._on_deserted = None, _nobody  # what is kept for a retry must not keep the exchange
        self._notify()

    def cancel(self) -> None:
        """Nobody wants it any more."""
        self.is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    # --------------------------------------------------------------------------------------------- who waits for it
    @property
    def is_joinable(self) -> bool:
        """Whether a retry may be given this answer: it is on its way, or it came and is in the trace."""
        if self.is_cancelled:
            return False
        return not self.is_over or (self.error is None and self.node_id is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of the answer that are held."""
        return sum(map(len, self._pieces))

    def since(self, at: int) -> bytes:
        """Everything written from piece ``at`` on; a finished answer is one piece."""
        return b"".join(self._pieces[at:])

    @property
    def count(self) -> int:
        return len(self._pieces)

    async def changed(self) -> None:
        """Until something was written."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            await waiting
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def desert(self) -> None:
        """A seat was given up before the answer was whole."""
        self.seats -= 1
        self.is_broken = True
        if not self.seats and not self.is_over:
            self._on_deserted(self)

    def _notify(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


def _nobody(call: Call) -> None:
    """A finished call has nobody to tell that it was deserted."""


class Seat:
    """One client's place at a call; it reads the answer from the beginning."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._at = 0
        self._read = 0
        self._is_left = False
        call.seats += 1

    async def answer(self, exchange: Exchange) -> Answer:
        """The answer once its head is there. Raises why there is none."""
        call = self.call
        try:
            while call.head is None and not call.is_over:
                await call.changed()
        except asyncio.CancelledError:
            self.give_up()
            raise
        head = call.head
        if head is None:
            self._is_left = True
            call.seats -= 1
            raise call.error or RuntimeError("a call ended without an answer")
        headers = head.headers.copy()
        if call.worker_url is not None and not exchange.attempts:
            headers.set("x-router-worker", call.worker_url)
        if head.is_whole:
            answer = Answer(head.status, headers, body=call.since(0))
        else:
            answer = Answer(head.status, headers)
            answer.chunks = self
        answer.error_code = head.error_code
        return answer

    def served(self) -> None:
        """The client has the answer whole."""
        if not self._is_left:
            self._is_left = True
            self.call.seats -= 1
        self.call.is_broken = False

    def give_up(self) -> None:
        """The client will not have it; only the first call counts."""
        if not self._is_left:
            self._is_left = True
            self.call.desert()

    # ---------------------------------------------------------------------------------------- an iterator over chunks
    def __aiter__(self) -> Seat:
        return self

    async def __anext__(self) -> bytes:
        call = self.call
        while True:
            if chunk := self._next():
                return chunk
            if call.is_over:
                if call.error is not None:
                    raise call.error
                raise StopAsyncIteration
            await call.changed()

    async def aclose(self) -> None:
        self.give_up()

    def _next(self) -> bytes:
        """What was written since the last time, however it is cut by now."""
        call = self.call
        if call.is_over:
            chunk = call.since(0)[self._read :]
        else:
            chunk = call.since(self._at)
            self._at = call.count
        self._read += len(chunk)
        return chunk
