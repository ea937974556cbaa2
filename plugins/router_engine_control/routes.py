"""The routes: verbs for all workers, aborts, questions that any worker answers, and the engines' metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from router_core import Exchange, NoWorker, Reject, Router, Worker
from router_engine_control.fan_out import Call, FanOut, Result, report, servers
from router_engine_control.pages import join_pages
from router_engine_control.rids import RidTable
from router_engine_control.verbs import (
    ANY_WORKER,
    VERBS,
    empties_cache,
    ended_pause,
    new_weight_version,
    pauses,
    read_abort,
    read_object,
    updates_weights,
)

NOT_PASSED = frozenset(
    [
        "host",
        "content-length",
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
        "accept-encoding",
    ]
)
"""Fields of a caller's request that are for this hop alone."""
UP = "# TYPE router_engine_metrics_up gauge\nrouter_engine_metrics_up {}\n"
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class ControlRoutes:
    """Needs `attach` before the first request."""

    def __init__(
        self,
        rids: RidTable[Exchange],
        *,
        timeout_s: float,
        out_timeout_s: float,
        info_timeout_s: float,
        metrics_timeout_s: float,
        window_ttl_s: float,
    ) -> None:
        self._rids = rids
        self._timeout_s, self._out_timeout_s = timeout_s, out_timeout_s
        self._info_timeout_s, self._metrics_timeout_s = info_timeout_s, metrics_timeout_s
        self._window_ttl_s = window_ttl_s
        self._router: Router
        self._tell_all: Callable[[Any], Awaitable[list[Any]]]
        self._asked = 0

    def attach(self, router: Router, tell_all: Callable[[Any], Awaitable[list[Any]]]) -> None:
        self._router, self._tell_all = router, tell_all

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/abort_request", self.abort, methods=["POST"]),
            Route("/abort_requests", self.abort_by_request_ids, methods=["POST"]),
            *(Route(path, self.to_all, methods=["GET", "POST", "PUT"]) for path in VERBS),
            *(Route(path, self.to_any, methods=["GET"]) for path in ANY_WORKER),
            Route("/engine_metrics", self.engine_metrics, methods=["GET"]),
        ]

    # ------------------------------------------------------------------------------------------------------------ verbs
    async def to_all(self, request: Request) -> Response:
        call = await self._read(request)
        workers, path = list(self._router.workers), request.url.path
        await self._tell("begun", path, workers)
        try:
            results = await self._ask(workers, call)
        finally:
            await self._tell("ended", path, workers)
        version = new_weight_version(path, call.body or b"")
        if version is not None or empties_cache(path):
            await self._tell("done", path, [result.worker for result in results if result.is_ok], version)
        return _told(results)

    async def _tell(self, what: str, path: str, workers: Iterable[Worker], version: str | None = None) -> None:
        """Says in every process how far a verb is at these workers."""
        await self._tell_all(("verb", what, path, [worker.id for worker in workers], version))

    def hear(self, what: str, path: str, worker_ids: Iterable[str], version: str | None) -> None:
        """A verb has begun, ended, or succeeded at these workers."""
        found = [self._router.workers.get(worker_id) for worker_id in worker_ids]
        workers = [worker for worker in found if worker is not None]
        if what == "begun":
            self._open_windows(path, workers)
        elif what == "ended":
            self._close_windows(path, workers)
        else:
            self._note(path, workers, version)

    def _open_windows(self, path: str, workers: Iterable[Worker]) -> None:
        """From now on these workers may abort what they run: a pause until it is ended, an update while it runs."""
        if pauses(path) or updates_weights(path):
            until = self._router.clock.now() + self._window_ttl_s
            for worker in workers:
                worker.windows.open(path, until)

    def _close_windows(self, path: str, workers: Iterable[Worker]) -> None:
        ended = path if updates_weights(path) else ended_pause(path)
        if ended is not None:
            for worker in workers:
                worker.windows.close(ended, self._router.clock.now())

    def _note(self, path: str, workers: Iterable[Worker], version: str | None) -> None:
        """What a verb that succeeded at these workers changed there: their weights, or their prefix caches."""
        for worker in workers:
            if version is not None:
                self._router.workers.update(worker, weight_version=version)
            if empties_cache(path):
                self._router.workers.forget_cache(worker)

    async def abort(self, request: Request) -> Response:
        """By rid: who has it; a rid that nobody is known to have, and ``abort_all``: everybody."""
        call = await self._read(request)
        rids = read_abort(call.body or b"")
        if rids is None:
            return await self._abort_all(call)
        known = await self._tell_all(("known", rids))
        is_known = all(any(by_process) for by_process in zip(*known, strict=True))
        return await self._abort(call, ("abort", rids, is_known), [] if is_known else self._router.workers)

    async def abort_by_request_ids(self, request: Request) -> Response:
        """vLLM's way: no ids mean everything; ids are the engine's own, so everybody is asked."""
        call = await self._read(request)
        if read_object(call.body or b"").get("request_ids"):
            return _told(await self._ask(self._router.workers, call))
        return await self._abort_all(call)

    async def _abort_all(self, call: Call) -> Response:
        """Asks everybody. A request that is held and has been at no worker yet is no worker's to abort: it stays."""
        return await self._abort(call, ("abort_all",), self._router.workers)

    async def _abort(self, call: Call, message: tuple[Any, ...], others: Iterable[Worker]) -> Response:
        """Asks the workers that run what is meant, in whichever process, and ``others``."""
        workers = dict.fromkeys(others)
        held = 0
        for ids, ended in await self._tell_all((*message, call)):
            workers.update((worker, None) for each in ids if (worker := self._router.workers.get(each)) is not None)
            held += ended
        return _told(await self._ask(workers, call), held=held)

    def knows(self, rids: Sequence[str]) -> list[bool]:
        """Of each rid, whether a request of this process has it."""
        return [bool(self._rids.get(rid)) for rid in rids]

    async def abort_all_here(self, call: Call) -> tuple[list[str], int]:
        """The same for all that are at a worker."""
        sent = [e for e in self._router.exchanges if any(attempt.request_sent for attempt in e.attempts)]
        owners, _ = await self._mark(sent, call, ends_held=False)
        return owners, 0

    async def abort_here(self, rids: Sequence[str], is_known: bool, call: Call) -> tuple[list[str], int]:
        """Marks what these rids mean in this process: the ids of its workers, and how many no worker had yet."""
        find = self._rids.get if is_known else self._rids.starting_with
        return await self._mark([exchange for rid in rids for exchange in find(rid)], call, ends_held=True)

    async def _mark(self, meant: Iterable[Exchange], call: Call, *, ends_held: bool) -> tuple[list[str], int]:
        """What no worker has yet ends here. A worker that is not registered any more is asked from here."""
        workers: dict[Worker, None] = {}
        held = 0
        for exchange in meant:
            exchange.ask_abort()
            owners = _owners(exchange)
            workers.update(dict.fromkeys(owners))
            if ends_held and not owners and all(attempt.status is None for attempt in exchange.attempts):
                held += 1
                exchange.interrupt(Reject(409, "aborted", "it was aborted by its rid before a worker had it", "rid"))
        await self._ask([worker for worker in workers if worker.is_gone], call)
        return [worker.id for worker in workers if not worker.is_gone], held

    # -------------------------------------------------------------------------------------------------------- questions
    async def to_any(self, request: Request) -> Response:
        """A ready worker's own answer; the next one is asked where it fails."""
        call = await self._read(request)
        ready = self._router.workers.ready()
        self._asked += 1
        result = None
        for at in range(len(ready)):
            worker = ready[(self._asked + at) % len(ready)]
            answer = await self._router.control.call(
                worker, call.method, call.target, timeout_s=self._info_timeout_s, headers=call.headers
            )
            result = Result(worker, answer)
            if answer.status and answer.status < 500:
                break
        if result is None:
            raise NoWorker("no worker is ready", {w.url: f"{w.state}: {w.reason}" for w in self._router.workers})
        answer = result.answer
        if not answer.status:
            raise Reject(502, "worker_unreachable", f"{result.worker.url}: {answer.error}")
        headers = {"x-router-worker": result.worker.url}
        if answer.content_type is not None:
            headers["content-type"] = answer.content_type
        return Response(answer.body, answer.status, headers)

    async def engine_metrics(self, request: Request) -> Response:
        """Every server's ``/metrics``, each sample labelled with its worker."""
        ask = FanOut(self._router.control, timeout_s=self._metrics_timeout_s, out_timeout_s=self._metrics_timeout_s)
        asked = [group[0] for group in servers(self._router.workers)]
        results = await ask.ask(asked, Call("GET", "/metrics", headers={"accept": "text/plain; version=0.0.4"}))
        pages = [(_name(result.worker), UP.format(int(result.is_ok))) for result in results]
        pages += [
            (_name(result.worker), result.answer.body.decode("utf-8", "replace")) for result in results if result.is_ok
        ]
        text = await asyncio.to_thread(join_pages, pages)
        return Response(text, headers={"content-type": PROMETHEUS_TEXT})

    # ----------------------------------------------------------------------------------------------------------- shared
    async def _ask(self, workers: Iterable[Worker], call: Call) -> list[Result]:
        ask = FanOut(self._router.control, timeout_s=self._timeout_s, out_timeout_s=self._out_timeout_s)
        return await ask.ask(workers, call)

    async def _read(self, request: Request) -> Call:
        """The call as it came: method, raw path and query, body, end-to-end fields. Raises Reject (400, 413)."""
        parts, size, limit = [], 0, self._router.settings.max_body_bytes
        try:
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise Reject(
                        413, "body_too_large", f"the body is longer than {limit} bytes (router.max_body_bytes)"
                    )
        except ClientDisconnect:
            raise Reject(400, "malformed_body", "the body is not whole") from None
        query = request.scope["query_string"]
        target = request.scope["raw_path"] + (b"?" + query if query else b"")
        headers = {name: value for name, value in request.headers.items() if name not in NOT_PASSED}
        return Call(request.method, target.decode("latin-1"), b"".join(parts) or None, headers)


def _owners(exchange: Exchange) -> list[Worker]:
    """The workers that have it now."""
    return [attempt.worker for attempt in exchange.attempts if attempt.outcome is None and attempt.request_sent]


def _told(results: Sequence[Result], **more: int) -> Response:
    status, body = report(results)
    return JSONResponse({**body, **{name: count for name, count in more.items() if count}}, status)


def _name(worker: Worker) -> str:
    return worker.url if worker.dp_rank is None else worker.base_url
