"""Exchanges, workers and answers for tests of a plugin's parts, without a router around them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import orjson

from router_core import Answer, Exchange, Headers, Identity, Request, Session, Worker, WorkerState
from router_core.testing.http1 import Fields, raw_pairs

_serial = itertools.count(1)


class _Body:
    """A body that is in memory."""

    is_streamed = False

    def __init__(self, body: bytes) -> None:
        self.whole = body
        self.length = len(body)
        self.is_declared = bool(body)

    async def read_all(self) -> bytes:
        return self.whole

    async def stream(self) -> AsyncIterator[bytes]:
        yield self.whole


def _spawn(work: Any, *, name: str) -> object:
    work.close()
    raise RuntimeError(f"{name!r} is not started: a built exchange runs nowhere; use a running_router")


def build_exchange(
    target: str = "/generate",
    *,
    method: str = "POST",
    headers: Fields = (),
    body: bytes = b"",
    json: object = None,
    session_id: str | None = None,
    session: Session | None = None,
    identity: Identity | None = None,
    settings: Any = None,
    started_at: float = 0.0,
) -> Exchange:
    """An exchange as hooks get it. ``settings`` is what ``exchange.settings(plugin)`` gives.

    >>> exchange = build_exchange(json={"text": "hi"}, headers=[("x-rack", "b")])
    """
    path, _, query = target.encode("latin-1").partition(b"?")
    if json is not None:
        body = orjson.dumps(json)
    pairs = [(name.lower(), value) for name, value in raw_pairs(headers)]
    request = Request(method, path, query, Headers(pairs), _Body(body))
    exchange = Exchange(f"built-{next(_serial)}", request, started_at=started_at)
    exchange.session = session
    exchange.session_id = session.id if session is not None else session_id
    exchange.identity = identity or Identity()
    exchange.serve_by(defaultdict(lambda: settings), _spawn)
    return exchange


def build_worker(
    url: str | None = None,
    *,
    state: WorkerState = WorkerState.READY,
    inflight: int = 0,
    labels: Mapping[str, str] | None = None,
    weight_version: str | None = None,
) -> Worker:
    """A worker that no table knows."""
    number = next(_serial)
    url = url or f"http://worker-{number}:30000"
    worker = Worker(id=f"w{number}", base_id=f"w{number}", url=url, key=url, base_url=url, dp_rank=None, generation=1)
    worker.state, worker.weight_version = state, weight_version
    worker.count(inflight)
    worker.labels = dict(labels or {})
    return worker


def build_answer(
    status: int = 200,
    *,
    headers: Fields = (),
    body: bytes = b"",
    json: object = None,
    chunks: Sequence[bytes] | None = None,
) -> Answer:
    """An answer of a worker: whole, or streamed in these ``chunks``."""
    fields = Headers([(name.lower(), value) for name, value in raw_pairs(headers)])
    if json is not None:
        return Answer.json(status, json, fields)
    if chunks is None:
        return Answer(status, fields, body=body)
    return Answer(status, fields, chunks=_each(chunks))


async def _each(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
