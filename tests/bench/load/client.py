"""The load client, a process of its own: ``python -m tests.bench.load.client JSON`` writes one JSON line of figures."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httptools
import uvloop

from tests.bench.load.bodies import Script, request_body, written_at_ns

DRAIN_S = 60.0
"""Seconds that running requests get once no new one is sent."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests over so many connections: each sends its next one when it has its answer, until the time is over."""

    connections: int
    duration_s: float = 0.0
    """0: each connection sends one request alone."""
    ramp_s: float = 0.0
    """Seconds over which the connections are opened."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Microseconds."""

    p50: float | None
    p99: float | None
    most: float | None

    @classmethod
    def of(cls, nanoseconds: Sequence[int]) -> Quantiles:
        if not nanoseconds:
            return cls(None, None, None)
        ordered = sorted(nanoseconds)
        last = len(ordered) - 1
        return cls(ordered[last // 2] / 1e3, ordered[min(last, last * 99 // 100 + 1)] / 1e3, ordered[-1] / 1e3)


class Run:
    """One run of a load, and what its connections saw."""

    def __init__(self, port: int, load: Load, script: Script) -> None:
        self._port = port
        self._load = load
        self._left = load.connections
        self._all_done = asyncio.Event()
        self.is_stream = script.events > 0
        body = request_body(script)
        self.request = b"POST /generate HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept: */*\r\n" % port
        self.request += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        self.latencies: list[int] = []
        self.first_bytes: list[int] = []
        self.transits: list[int] = []
        self.sizes: set[int] = set()
        self.bytes = self.events = 0
        self.errors: Counter[str] = Counter()

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end

    def done(self, error: str | None = None) -> None:
        if error is not None:
            self.errors[error] += 1
        self._left -= 1
        if self._left == 0:
            self._all_done.set()

    async def run(self) -> dict[str, Any]:
        load, start = self._load, time.monotonic()
        self._end = start + load.duration_s
        opening = [
            asyncio.create_task(self._open(load.ramp_s * number / load.connections))
            for number in range(load.connections)
        ]
        try:
            async with asyncio.timeout(load.duration_s + load.ramp_s + DRAIN_S):
                await self._all_done.wait()
        except TimeoutError:
            self.errors["no answer in time"] += self._left
        seconds = time.monotonic() - start
        await asyncio.gather(*opening, return_exceptions=True)
        return {
            "requests": len(self.latencies),
            "errors": sum(self.errors.values()),
            "error_kinds": dict(self.errors),
            "seconds": seconds,
            "bytes": self.bytes,
            "sizes": sorted(self.sizes)[:8],
            "events": self.events,
            **_named("latency", Quantiles.of(self.latencies)),
            **_named("first_byte", Quantiles.of(self.first_bytes)),
            **_named("transit", Quantiles.of(self.transits)),
        }

    async def _open(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            await asyncio.get_running_loop().create_connection(lambda: Connection(self), "127.0.0.1", self._port)
        except OSError as error:
            self.done(f"no connection: {error.strerror}")


def _named(name: str, quantiles: Quantiles) -> dict[str, float | None]:
    return {f"{name}_p50_us": quantiles.p50, f"{name}_p99_us": quantiles.p99, f"{name}_max_us": quantiles.most}


class Connection(asyncio.Protocol):
    """Sends requests one after another."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._parser = httptools.HttpResponseParser(self)
        self._is_done = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._size = self._first_ns = 0
        self._rest = b""
        self._sent_ns = time.monotonic_ns()
        self._transport.write(self._run.request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._done("malformed")

    def on_body(self, body: bytes) -> None:
        now = time.monotonic_ns()
        self._first_ns = self._first_ns or now
        self._size += len(body)
        if self._run.is_stream:
            *events, self._rest = (self._rest + body).split(b"\n\n")
            for event in events:
                if (at := written_at_ns(event)) is not None:
                    self._run.events += 1
                    self._run.transits.append(now - at)

    def on_message_complete(self) -> None:
        run, now = self._run, time.monotonic_ns()
        if (status := self._parser.get_status_code()) != 200:
            self._done(f"status {status}")
            return
        run.latencies.append(now - self._sent_ns)
        run.first_bytes.append((self._first_ns or now) - self._sent_ns)
        run.bytes += self._size
        if len(run.sizes) < 8:
            run.sizes.add(self._size)
        if run.is_over:
            self._done(None)
        else:
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        self._done("cut")

    def _done(self, error: str | None) -> None:
        if not self._is_done:
            self._is_done = True
            self._run.done(error)
            self._transport.close()


def main() -> None:
    gc.disable()  # with thousands of connections it takes 20 ms, which would be the proxy's
    asked = json.loads(sys.argv[1])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def run() -> dict[str, Any]:
        return await Run(asked["port"], Load(**asked["load"]), Script(**asked["script"])).run()

    print(json.dumps(uvloop.run(run())))


if __name__ == "__main__":
    main()
