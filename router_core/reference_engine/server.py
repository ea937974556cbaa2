"""Serves an engine over HTTP: binds first, then says where."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from router_core.reference_engine.engine import Engine
from router_core.reference_engine.errors import RequestError
from router_core.reference_engine.http import ClientLeftError, json_response
from router_core.reference_engine.options import EngineOptions
from router_core.reference_engine.sglang_routes import SglangRoutes
from router_core.reference_engine.weight_source import first_model


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that is being served at ``url``."""

    engine: Engine
    host: str
    port: int

    @property
    def url(self) -> str:
        """``http://host:port``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def make_engine(options: EngineOptions) -> Engine:
    """Return an engine that is not started yet."""
    model, tokenizer = first_model(options)
    return Engine(model, tokenizer, options)


def make_app(engine: Engine) -> Starlette:
    """Return the ASGI app of the engine's dialect; the engine is started and closed by whoever serves it."""
    return Starlette(
        routes=SglangRoutes(engine).routes(),
        exception_handlers={RequestError: _request_error, HTTPException: _http_error, ClientLeftError: _client_left},
    )


async def _request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return json_response({"error": {"message": error.message}}, error.status)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return json_response({"detail": error.detail}, error.status_code)


async def _client_left(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


class _Server(uvicorn.Server):
    """Leaves the signals to whoever runs the loop, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_listening.set()


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(2048)
    except OSError:
        bound.close()
        raise
    return bound


@asynccontextmanager
async def running_engine(options: EngineOptions) -> AsyncIterator[RunningEngine]:
    """Serve an engine in this loop until the block ends; requests that run then are aborted."""
    listener = bind(options.host, options.port)
    engine = make_engine(options)
    server = _Server(
        uvicorn.Config(
            make_app(engine), lifespan="off", ws="none", log_config=None, access_log=False, timeout_graceful_shutdown=1
        )
    )
    await engine.start()
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="reference engine's server")
    try:
        await server.is_listening.wait()
        yield RunningEngine(engine, options.host, listener.getsockname()[1])
    finally:
        server.should_exit = True
        await engine.close()
        await serving
