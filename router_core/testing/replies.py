"""Plain answers: to send from a handler, or as a handler of their own."""

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable

import orjson

from router_core.testing.connection import Connection
from router_core.testing.http1 import Fields
from router_core.testing.request import ScriptedRequest

EVENT_STREAM = "text/event-stream; charset=utf-8"

Reply = Callable[[ScriptedRequest, Connection], Awaitable[bool]]
"""A handler that keeps the connection open."""


async def send_json(connection: Connection, value: object, status: int = 200, headers: Fields = ()) -> bool:
    return await connection.answer(orjson.dumps(value), status, headers)


async def send_events(connection: Connection, events: AsyncIterable[bytes], headers: Fields = ()) -> bool:
    """A chunked SSE stream, one ``data:`` event in each chunk."""
    await connection.begin(200, headers, content_type=EVENT_STREAM)
    async for event in events:
        await connection.write(b"data: " + event + b"\n\n")
    return await connection.end()


def reply(
    body: bytes = b"{}", status: int = 200, headers: Fields = (), *, content_type: str | None = "application/json"
) -> Reply:
    """``worker.handler = reply(b"exactly this")``."""

    async def handler(request: ScriptedRequest, connection: Connection) -> bool:
        return await connection.answer(body, status, headers, content_type=content_type)

    return handler


def reply_json(value: object, status: int = 200, headers: Fields = ()) -> Reply:
    return reply(orjson.dumps(value), status, headers)


def reply_pieces(pieces: Iterable[bytes], headers: Fields = (), *, content_type: str = EVENT_STREAM) -> Reply:
    """A chunked answer, each piece a chunk: an SSE stream cut wherever a test likes."""
    held = list(pieces)

    async def handler(request: ScriptedRequest, connection: Connection) -> bool:
        await connection.begin(200, headers, content_type=content_type)
        for piece in held:
            await connection.write(piece)
        return await connection.end()

    return handler
