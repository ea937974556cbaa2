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

from router_core.reference_engine.engine import Engine
from router_core.reference_engine.error_responses import client_left, http_error, sglang_error, vllm_error
from router_core.reference_engine.errors import RequestError
from router_core.reference_engine.http import ClientLeftError
from router_core.reference_engine.openai_routes import OpenAiRoutes
from router_core.reference_engine.openai_sglang import SglangOpenAi
from router_core.reference_engine.openai_vllm import VllmOpenAi
from router_core.reference_engine.options import EngineOptions
from router_core.reference_engine.sglang_control import SglangControl
from router_core.reference_engine.sglang_routes import SglangRoutes
from router_core.reference_engine.vllm_control import VllmControl
from router_core.reference_engine.vllm_routes import VllmRoutes
from router_core.reference_engine.weight_source import first_model

_MOST_SHUTDOWN_S = 1.0
"""How long answers that are under way may take to leave at the end."""


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
    if engine.options.dialect == "sglang":
        routes = [*SglangRoutes(engine).routes(), *SglangControl(engine).routes()]
        routes += OpenAiRoutes(engine, SglangOpenAi(engine)).routes()
    else:
        routes = [*VllmRoutes(engine).routes(), *VllmControl(engine).routes()]
        routes += OpenAiRoutes(engine, VllmOpenAi(engine)).routes()
    return Starlette(
        routes=routes,
        exception_handlers={
            RequestError: vllm_error if engine.options.dialect == "vllm" else sglang_error,
            HTTPException: http_error,
            ClientLeftError: client_left,
        },
    )


class _Server(uvicorn.Server):
    """Leaves the signals to whoever runs the loop, says when it listens, and stops without uvicorn's fixed waits."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()
        self._is_stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_listening.set()

    def stop(self) -> None:
        """Begin to shut down."""
        self.should_exit = True
        self._is_stopping.set()

    async def main_loop(self) -> None:
        tick = 0
        while not await self.on_tick(tick):
            tick += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), 0.1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        deadline = asyncio.get_running_loop().time() + _MOST_SHUTDOWN_S
        while self.server_state.connections or self.server_state.tasks:
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.002)
        for task in list(self.server_state.tasks):
            task.cancel()
        await asyncio.gather(*self.server_state.tasks, return_exceptions=True)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. A place that cannot be had is a ValueError or an OSError."""
    if not 0 <= port <= 65535:
        raise ValueError(f"--port is a number from 0 to 65535, not {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(2048)
    except OSError as error:
        bound.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return bound


@asynccontextmanager
async def running_engine(options: EngineOptions) -> AsyncIterator[RunningEngine]:
    """Serve an engine in this loop until the block ends; requests that run then are aborted."""
    listener = bind(options.host, options.port)
    try:
        engine = make_engine(options)
    except BaseException:
        listener.close()
        raise
    server = _Server(uvicorn.Config(make_app(engine), lifespan="off", ws="none", log_config=None, access_log=False))
    await engine.start()
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="reference engine's server")
    try:
        await server.is_listening.wait()
        yield RunningEngine(engine, options.host, listener.getsockname()[1])
    finally:
        await engine.close()
        server.stop()
        await serving
