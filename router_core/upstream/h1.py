"""The data client: lean HTTP/1.1 with a pool of connections for each worker.

A request that was written is never sent a second time.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from router_core.deadline import within
from router_core.errors import WorkerUnreachable
from router_core.outbox import Outbox
from router_core.upstream.aiohttp_client import AiohttpUpstream
from router_core.upstream.connection import Address, Connection
from router_core.upstream.interface import IDLE_S, Incoming, Outgoing, Upstream

MAX_POOLED_WORKERS = 10_000


class H1Upstream(Upstream):
    """`Upstream` for plain HTTP; workers behind TLS go through aiohttp."""

    def __init__(self, *, connect_timeout_s: float, max_field_bytes: int) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._max_field_bytes = max_field_bytes
        self._pools: dict[str, Pool] = {}
        self._outbox = Outbox()
        self._tls = AiohttpUpstream(connect_timeout_s=connect_timeout_s, max_field_bytes=max_field_bytes)
        self._sweeper: asyncio.TimerHandle | None = None

    async def send(self, request: Outgoing, on_write: Callable[[], None]) -> Incoming:
        pool = self._pools.get(request.base_url)
        if pool is None:
            if request.base_url.startswith("https:"):
                return await self._tls.send(request, on_write)
            pool = self._pool(request.base_url)
        while True:
            connection = pool.take()
            if connection is None:
                connection = await pool.open(self._connect_timeout_s, self._max_field_bytes)
            answer = connection.start(request, on_write)
            try:
                while (waits_for := answer.head()) is not None:
                    await waits_for
                if not answer.is_unsent:
                    return answer
            except BaseException:
                answer.close()  # with what writes the request's body
                raise

    def _pool(self, base_url: str) -> Pool:
        if len(self._pools) >= MAX_POOLED_WORKERS:
            self._close_idle()
            self._pools.clear()
        pool = self._pools[base_url] = Pool(base_url, self._outbox)
        if self._sweeper is None:
            self._sweep()
        return pool

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for pool in self._pools.values():
            pool.expire(loop.time() - IDLE_S)
        self._sweeper = loop.call_later(1.0, self._sweep)

    def _close_idle(self) -> None:
        for pool in self._pools.values():
            pool.expire(float("inf"))

    async def aclose(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._close_idle()
        await self._tls.aclose()


class Pool:
    """The idle connections of one worker; the one that was used last is taken first."""

    __slots__ = ("_address", "_idle", "_outbox")

    def __init__(self, base_url: str, outbox: Outbox) -> None:
        self._address = Address(base_url)
        self._outbox = outbox
        self._idle: list[Connection] = []
        """The one that was used last comes last."""

    def take(self) -> Connection | None:
        """An idle connection; its worker may have closed it meanwhile (`H1Answer.is_unsent`)."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_lost:
                return connection
        return None

    def expire(self, before: float) -> None:
        """Closes what has been idle since ``before`` (loop time)."""
        idle = self._idle
        while idle and idle[0].idle_since < before:
            idle.pop(0).drop()

    async def open(self, timeout_s: float, max_field_bytes: int) -> Connection:
        """A new connection. Raises WorkerUnreachable."""
        address = self._address
        try:
            return await within(timeout_s, self._connect(asyncio.get_running_loop(), max_field_bytes))
        except TimeoutError as error:
            raise WorkerUnreachable(f"{address.base_url}: no connection within {timeout_s:g} s") from error
        except (OSError, UnicodeError) as error:
            refused = isinstance(error, ConnectionRefusedError)
            raise WorkerUnreachable(f"{address.base_url}: {error}", refused=refused) from error

    async def _connect(self, loop: asyncio.AbstractEventLoop, max_field_bytes: int) -> Connection:
        """To the first address of the host that answers; the error is that of the last one."""
        address = self._address
        hosts = [address.host]
        if not address.is_literal:  # asyncio would make one text of the errors of several addresses
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            hosts = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
        for host in hosts:
            try:
                _, connection = await loop.create_connection(
                    lambda: Connection(address, loop, self._outbox, max_field_bytes, self._idle.append),
                    host,
                    address.port,
                )
            except OSError:
                if host == hosts[-1]:
                    raise
            else:
                return connection
        raise OSError("the host has no address")
