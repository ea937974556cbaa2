"""One call to many workers at once, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from router_core import ControlAnswer, ControlClient, Worker, WorkerState

MAX_MESSAGE_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Call:
    """A request for workers: ``target`` is its raw path and query."""

    method: str
    target: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """What one worker made of a call."""

    worker: Worker
    answer: ControlAnswer

    @property
    def is_ok(self) -> bool:
        """2xx, and no ``"success": false`` in it."""
        body = self.answer.json() if self.answer.is_ok else None
        return self.answer.is_ok and not (isinstance(body, dict) and body.get("success") is False)

    @property
    def message(self) -> str:
        text = self.answer.error or self.answer.body.decode("utf-8", "replace") or f"answered {self.answer.status}"
        return text[:MAX_MESSAGE_CHARACTERS]

    def describe(self) -> dict[str, Any]:
        told: dict[str, Any] = {"url": self.worker.url, "status": self.answer.status}
        if self.answer.error is not None:
            return {**told, "error": self.answer.error}
        body = self.answer.json()
        return {**told, "body": self.answer.body.decode("utf-8", "replace") if body is None else body}


def servers(workers: Iterable[Worker]) -> list[list[Worker]]:
    """Workers grouped by server: data-parallel ranks of one share it, and a verb is for the server."""
    groups: dict[str, list[Worker]] = {}
    for worker in workers:
        groups.setdefault(worker.base_url, []).append(worker)
    return list(groups.values())


class FanOut:
    """Asks every server at once, on control connections. A worker that is out gets less time."""

    def __init__(self, control: ControlClient, *, timeout_s: float, out_timeout_s: float) -> None:
        self._control = control
        self._timeout_s = timeout_s
        self._out_timeout_s = out_timeout_s

    async def ask(self, workers: Iterable[Worker], call: Call) -> list[Result]:
        """One result for each worker, in their order by server."""
        groups = servers(workers)
        answers = await asyncio.gather(*(self._ask_server(group, call) for group in groups))
        return [Result(worker, answer) for group, answer in zip(groups, answers, strict=True) for worker in group]

    async def _ask_server(self, ranks: Sequence[Worker], call: Call) -> ControlAnswer:
        is_out = all(worker.state in (WorkerState.QUARANTINED, WorkerState.STARTING) for worker in ranks)
        return await self._control.call(
            ranks[0],
            call.method,
            call.target,
            timeout_s=min(self._timeout_s, self._out_timeout_s) if is_out else self._timeout_s,
            body=call.body,
            headers=call.headers,
        )


def report(results: Sequence[Result]) -> tuple[int, dict[str, Any]]:
    """Status and body of the answer: 200, or 207 where a worker failed."""
    failed = [result for result in results if not result.is_ok]
    body = {
        "results": {result.worker.id: result.describe() for result in results},
        "failed": [
            {
                "worker_id": result.worker.id,
                "url": result.worker.url,
                "status": result.answer.status,
                "message": result.message,
            }
            for result in failed
        ],
        "total": len(results),
        "succeeded": len(results) - len(failed),
    }
    return (207 if failed else 200), body
