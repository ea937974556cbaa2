"""The scripted worker, a process of its own: ``python -m tests.bench.load.worker PORTS``.

It listens on so many ports, as if it were as many workers, and writes them as one JSON line. Each line that it reads
is a script, which holds from then on whatever a proxy does to requests; what has been counted so far is the answer.
It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import time
from dataclasses import asdict
from typing import Any

import httptools
import uvloop

from tests.bench.load.bodies import Script, answer_body, event

BACKLOG = 8192
EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
DESCRIPTION = {
    "model_path": "scripted",
    "served_model_name": "scripted",
    "tokenizer_path": "scripted",
    "is_generation": True,
    "max_total_num_tokens": 1_000_000,
    "context_length": 131_072,
    "dp_size": 1,
    "version": "0.5.6",
    "weight_version": "default",
    "disaggregation_mode": "null",
    "internal_states": [{}],
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "has_image_understanding": False,
    "has_audio_understanding": False,
}
MODELS = {"object": "list", "data": [{"id": "scripted", "object": "model", "max_model_len": 131_072}]}
INFO_PATHS = (b"/get_model_info", b"/model_info", b"/get_server_info", b"/server_info")
HEALTH_PATHS = (b"/health", b"/health_generate", b"/readiness", b"/liveness", b"/ready", b"/ping")


def json_answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
    return head + body


FIXED = {
    **dict.fromkeys(HEALTH_PATHS, EMPTY),
    **dict.fromkeys(INFO_PATHS, json_answer(json.dumps(DESCRIPTION).encode())),
    b"/v1/models": json_answer(json.dumps(MODELS).encode()),
}
NOT_FOUND = json_answer(b'{"error":"not found"}', b"404 Not Found")


class Worker:
    """The script that holds, and what has been counted under it."""

    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self.begin(Script())

    def begin(self, script: Script) -> None:
        """Idle connections are closed: those that all contenders keep would add up to the limit of open files.

        The collector looks now, and not amid a load: with thousands of connections it takes 20 ms.
        """
        self.script = script
        self.answer = json_answer(answer_body(script))
        self.requests = self.events = self.cut = self.inflight = self.peak = 0
        for connection in list(self.connections):
            if not connection.is_busy:
                connection.transport.close()
        gc.collect()

    def counts(self) -> dict[str, int]:
        return {
            "requests": self.requests,
            "events": self.events,
            "cut": self.cut,
            "peak_inflight": self.peak,
            "answer_bytes": self.answer.index(b"\r\n\r\n") and len(self.answer) - self.answer.index(b"\r\n\r\n") - 4,
        }


class Connection(asyncio.Protocol):
    """A connection that a proxy opened, or a client."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self.is_busy = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._worker.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._worker.connections.discard(self)
        if self.is_busy:
            self._worker.cut += 1
            self._end()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_message_complete(self) -> None:
        path, self._path = self._path.partition(b"?")[0], b""
        worker = self._worker
        if path not in (b"/generate", b"/v1/chat/completions"):
            self._write(FIXED.get(path, NOT_FOUND))
            return
        worker.requests += 1
        if worker.script.events:
            self._begin()
            self.transport.write(STREAM_HEAD)
            self._stream(0, asyncio.get_running_loop().time())
        elif worker.script.delay_s:
            self._begin()
            asyncio.get_running_loop().call_later(worker.script.delay_s, self._answer)
        else:
            self._write(worker.answer)

    def _begin(self) -> None:
        self.is_busy = True
        self._worker.inflight += 1
        self._worker.peak = max(self._worker.peak, self._worker.inflight)

    def _end(self) -> None:
        self.is_busy = False
        self._worker.inflight -= 1

    def _answer(self) -> None:
        if self.is_busy:
            self._end()
            self._write(self._worker.answer)

    def _stream(self, number: int, due: float) -> None:
        """One event, then the next at its time, not later by what this one took."""
        if not self.is_busy:
            return
        if number >= self._worker.script.events:
            self._end()
            self._write(STREAM_END)
            return
        data = event(number, time.monotonic_ns())
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        self._worker.events += 1
        due += self._worker.script.interval_s
        asyncio.get_running_loop().call_at(due, self._stream, number + 1, due)

    def _write(self, data: bytes) -> None:
        self.transport.write(data)
        if not self._parser.should_keep_alive():
            self.transport.close()


async def serve(ports: int) -> None:
    loop, worker, listening = asyncio.get_running_loop(), Worker(), []
    for _ in range(ports):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        server = await loop.create_server(lambda: Connection(worker), sock=listener, backlog=BACKLOG)
        listening.append((server, listener.getsockname()[1]))
    print(json.dumps([port for _, port in listening]), flush=True)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        counts = worker.counts()
        if line.strip() != b"{}":
            worker.begin(Script(**json.loads(line)))
        print(json.dumps(counts), flush=True)


def line_of(script: Script) -> str:
    return json.dumps(asdict(script))


if __name__ == "__main__":
    gc.disable()
    uvloop.run(serve(int(sys.argv[1])))
