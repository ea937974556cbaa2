"""``python -m router_core.demo.llama_server WEIGHTS``: llama.cpp's server on a loopback port, until it is ended.

llama.cpp promises to keep a connection and closes it after each stream; whoever sends the next request on it just then
has lost that one. So clients come to a port in front of it, where each answer says that its connection is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path

THREADS = 1
SLOTS = 4
"""Requests it decodes at one time."""
CONTEXT_TOKENS = 4096
"""Of all slots together."""
PIECE_BYTES = 65536
HEAD_END = b"\r\n\r\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ready-file", type=Path, required=True)
    options = parser.parse_args()

    xllamacpp = importlib.import_module("xllamacpp")  # an extra, without types
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(options.weights)
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.n_parallel = SLOTS
    parameters.n_ctx = CONTEXT_TOKENS
    parameters.cpuparams.n_threads = THREADS
    server = xllamacpp.Server(parameters)  # serves in threads of its own; a signal ends them all
    asyncio.run(_serve(options.port, int(server.listening_address.rpartition(":")[2]), options.ready_file))


async def _serve(port: int, llama_port: int, ready_file: Path) -> None:
    """Serves on ``port`` what comes from ``llama_port``, and writes the ready file once it does."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _pass_on(reader, writer, llama_port)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # one of both has gone, and the other is told by the end of its connection
        finally:
            writer.close()

    listener = await asyncio.start_server(accept, "127.0.0.1", port)
    port = listener.sockets[0].getsockname()[1]
    line = json.dumps({"url": f"http://127.0.0.1:{port}", "port": port, "pid": os.getpid()})
    partial = ready_file.with_name(ready_file.name + ".partial")
    partial.write_text(line + "\n", encoding="utf-8")
    partial.replace(ready_file)
    async with listener:
        await listener.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, llama_port: int) -> None:
    """One connection with one exchange; ends when either side does."""
    llama_reader, llama_writer = await asyncio.open_connection("127.0.0.1", llama_port)
    up = asyncio.create_task(_copy(reader, llama_writer))
    down = asyncio.create_task(_copy(llama_reader, writer, closing))
    try:
        await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
    finally:
        up.cancel()
        down.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
        llama_writer.close()


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change_head: Callable[[bytes], bytes] | None = None
) -> None:
    if change_head is not None:
        writer.write(change_head(await reader.readuntil(HEAD_END)))
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()


def closing(head: bytes) -> bytes:
    """The head of an answer, saying that its connection is closed after it."""
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith((b"keep-alive:", b"connection:"))]
    return b"\r\n".join([lines[0], b"Connection: close", *lines[1:]])


if __name__ == "__main__":
    main()
