"""What both wires need of HTTP: JSON in and out, server-sent events, and noticing that the client has left."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router_core.reference_engine.errors import WrongTypeError

T = TypeVar("T")


class ClientLeftError(Exception):
    """The client closed the connection before its answer was there."""


def json_response(content: Any, status: int = 200) -> Response:
    """Return ``content`` as JSON."""
    return Response(orjson.dumps(content), status, media_type="application/json")


async def read_body(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request; an empty body is an empty object."""
    raw = await request.body()
    if not raw:
        return {}
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise WrongTypeError("body", f"The body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise WrongTypeError("body", "The body must be a JSON object.")
    return body


async def unless_client_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` returns; it is cancelled, and ClientLeftError raised, when the client leaves first."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_client_left(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientLeftError
    finally:
        await _cancel(working, leaving)


class EventStream(Response):
    """Sends server-sent events as they come; ``on_end`` is called once, however it ends."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], on_end: Callable[[], None], headers: Mapping[str, str] | None = None
    ) -> None:
        self._events = events
        self._on_end = on_end
        self.status_code = 200
        self.background = None
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events end or the client leaves."""
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_client_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            await _cancel(sending, leaving)
            self._on_end()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def event(content: Any) -> bytes:
    """Return one server-sent event of JSON."""
    return b"data: " + orjson.dumps(content) + b"\n\n"


DONE = b"data: [DONE]\n\n"


async def _client_left(receive: Receive) -> None:
    """Return once the client has closed the connection; the body has been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def merged(sources: list[AsyncIterator[T]]) -> AsyncIterator[tuple[int, T]]:
    """Yield what the sources yield as it comes, with the number of its source."""
    queue: asyncio.Queue[tuple[int, T] | None] = asyncio.Queue()

    async def drain(number: int, source: AsyncIterator[T]) -> None:
        try:
            async for item in source:
                queue.put_nowait((number, item))
        finally:
            queue.put_nowait(None)

    tasks = [asyncio.ensure_future(drain(number, source)) for number, source in enumerate(sources)]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            else:
                yield item
        for task in tasks:
            task.result()
    finally:
        await _cancel(*tasks)
