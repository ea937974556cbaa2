"""What many captured sessions cost: python -m tests.bench.sessions [--at-once 4096] [--in-turn 10000] [--turns 3].

First so many sessions at once, all of whose first turns are in flight at one moment; then so many one after another,
each deleted when it is done, with the router's resident memory along the way, which must become flat. The router is a
process of its own with capture on (``tito``) beside the default set; the worker and the agents are in this one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import resource
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from router_core.config import DEFAULT_ENABLED
from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import RawClient, ScriptedRequest, ScriptedWorker, exchange_once
from router_core.testing.connection import Connection
from tests.bench.measured_router import MeasuredRouter, measured_router

CHAT = "/v1/chat/completions"
SAID, SAID_IDS = "x y", (8, 9)
OPENING = 256
"""Agents that open their session at one time."""
LIMIT_S = 600.0


class SessionError(Exception):
    """A session is not what was said in it."""


def resident_kib(pid: int) -> int:
    """What the process holds in memory now."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])  # type: ignore[index]


@dataclass(slots=True)
class Sessions:
    """A captured router, its worker, and the agents' calls."""

    router: MeasuredRouter
    worker: ScriptedWorker
    turns: int

    async def play(self, client: RawClient, session_id: str) -> None:
        """One session, from its opening to its end."""
        await self.open(client, session_id)
        await self.talk(client, session_id)
        await self.check(client, session_id)
        await self.close(client, session_id)

    async def open(self, client: RawClient, session_id: str) -> None:
        await _ask(client, "POST", "/sessions", {"session_id": session_id})

    async def talk(self, client: RawClient, session_id: str) -> None:
        messages = [{"role": "user", "content": f"session {session_id}, hello"}]
        for turn in range(self.turns):
            body = {"model": "m", "messages": messages}
            answer = await _ask(client, "POST", f"/sessions/{session_id}{CHAT}", body)
            said = {key: value for key, value in answer["choices"][0]["message"].items() if value is not None}
            messages = [*messages, said, {"role": "user", "content": f"and then, after turn {turn}?"}]

    async def check(self, client: RawClient, session_id: str) -> None:
        """Every turn is in one trajectory, with the ids that were sampled. Raises SessionError."""
        told = await _ask(client, "GET", f"/sessions/{session_id}")
        records, ids = told["records"], told["accumulated_token_ids"]
        sampled = [ids[record["prompt_token_count"] :][: len(SAID_IDS)] for record in records]
        if len(records) != self.turns or any(tuple(each) != SAID_IDS for each in sampled):
            raise SessionError(f"{session_id}: {len(records)} turns of {self.turns}, sampled {sampled}")

    async def close(self, client: RawClient, session_id: str) -> None:
        await _ask(client, "DELETE", f"/sessions/{session_id}")

    async def left(self) -> dict[str, float]:
        """What the router still holds of sessions, by its own page."""
        page = (await exchange_once(self.router.port, "GET", "/metrics")).body.decode()
        names = ("router_sessions_open", "router_tito_sessions", "router_tito_nodes", "router_affinity_sessions")
        return {name: float(value) for name in names for value in re.findall(rf"(?m)^{name}(?:{{.*}})? (\S+)$", page)}


async def _ask(client: RawClient, method: str, target: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = await client.request(method, target, json=body, timeout_s=LIMIT_S)
    if answer.status not in (200, 204):
        raise SessionError(f"{method} {target}: {answer.status} {answer.body[:300]!r}")
    return answer.json() if answer.body else {}


@asynccontextmanager
async def captured_sessions(turns: int) -> AsyncIterator[Sessions]:
    """A router with capture on, in front of a worker that says the same two tokens each time."""
    async with ScriptedWorker() as worker:
        worker.say(SAID, ids=list(SAID_IDS), times=None)
        answer = worker.engine.answer

        async def handler(request: ScriptedRequest, connection: Connection) -> bool | None:
            keep_open = await answer(request, connection)
            worker.requests.clear()  # its log is no leak of the router
            return keep_open

        worker.handler = handler
        enabled = ("tito", "hf_tokenizer", *DEFAULT_ENABLED)
        async with measured_router(worker.url, enabled, (f"plugins.hf_tokenizer.path={ASSETS}",)) as router:
            yield Sessions(router, worker, turns)


@dataclass(slots=True)
class AtOnce:
    """What so many sessions at one time cost."""

    count: int
    inflight: int = 0
    """Turns that the worker held at one moment."""
    cpu_ms_turn: float = 0.0
    seconds: float = 0.0
    resident_kib: dict[str, int] = field(default_factory=dict)
    """Before, in flight, talked, closed."""
    left: dict[str, float] = field(default_factory=dict)


async def at_once(sessions: Sessions, count: int) -> AtOnce:
    """All of them open, all first turns held by the worker together, then the other turns, the check and the end."""
    found, pid = AtOnce(count), sessions.router.pid
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(RawClient(sessions.router.port)) for _ in range(count)]
        found.resident_kib["before"] = resident_kib(pid)
        names = [f"at-once-{number}" for number in range(count)]
        await _each(sessions.open, clients, names, at_one_time=OPENING)
        all_in, may_go, held = asyncio.Event(), asyncio.Event(), 0
        answer = sessions.worker.handler

        async def hold(request: ScriptedRequest, connection: Connection) -> bool | None:
            nonlocal held
            held += 1
            if held == count:
                all_in.set()
            await may_go.wait()
            return await answer(request, connection)

        sessions.worker.handler = hold
        cpu_ms, since = sessions.router.cpu_ms, time.monotonic()
        talking = asyncio.create_task(_each(sessions.talk, clients, names, at_one_time=count))
        try:
            async with asyncio.timeout(LIMIT_S):
                waiting = asyncio.create_task(all_in.wait())
                await asyncio.wait((waiting, talking), return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
            found.inflight, found.resident_kib["in flight"] = held, resident_kib(pid)
        finally:
            may_go.set()
            sessions.worker.handler = answer
            await talking
        found.seconds = time.monotonic() - since
        found.cpu_ms_turn = (sessions.router.cpu_ms - cpu_ms) / (count * sessions.turns)
        found.resident_kib["talked"] = resident_kib(pid)
        await _each(sessions.check, clients, names, at_one_time=OPENING)
        await _each(sessions.close, clients, names, at_one_time=OPENING)
        found.left = await sessions.left()
    found.resident_kib["closed"] = resident_kib(pid)
    return found


async def _each(
    work: Callable[[RawClient, str], Any], clients: list[RawClient], names: list[str], *, at_one_time: int
) -> None:
    """Raises the first error, and then stops the others."""
    turn = asyncio.Semaphore(at_one_time)

    async def one(client: RawClient, name: str) -> None:
        async with turn:
            await work(client, name)

    try:
        async with asyncio.TaskGroup() as group:
            for client, name in zip(clients, names, strict=True):
                group.create_task(one(client, name))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def in_turn(
    sessions: Sessions, count: int, samples: int = 10, *, say: Callable[[str], None] = print
) -> list[int]:
    """So many sessions, one after another; the router's resident KiB after each tenth of them."""
    found = []
    async with RawClient(sessions.router.port) as client:
        for number in range(count):
            await sessions.play(client, f"in-turn-{number}")
            if (number + 1) % (count // samples) == 0:
                found.append(resident_kib(sessions.router.pid))
                say(f"  {number + 1} sessions: {found[-1] / 1024:.2f} MiB")
    return found


async def run(count_at_once: int, count_in_turn: int, turns: int) -> None:
    async with captured_sessions(turns) as sessions:
        if count_at_once:
            found = await at_once(sessions, count_at_once)
            before, held = found.resident_kib["before"], found.resident_kib["in flight"]
            print(
                f"{found.count} sessions at once, {turns} turns each: {found.inflight} turns in flight together, "
                f"{(held - before) / found.count:.1f} KiB each; {found.seconds:.1f} s, "
                f"{found.cpu_ms_turn:.2f} ms CPU of the router a turn; MiB: "
                + ", ".join(f"{name} {kib / 1024:.1f}" for name, kib in found.resident_kib.items())
                + f"; left: {found.left}"
            )
    if count_in_turn:
        async with captured_sessions(turns) as sessions:
            print(f"{count_in_turn} sessions one after another, {turns} turns each:")
            await in_turn(sessions, count_in_turn)
            print(f"  left: {await sessions.left()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, default=4096)
    parser.add_argument("--in-turn", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(run(options.at_once, options.in_turn, options.turns))


if __name__ == "__main__":
    main()
