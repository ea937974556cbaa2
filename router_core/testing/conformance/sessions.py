"""What it keeps: after a session has closed, nothing of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import types
from collections import deque
from typing import Any

import orjson

from router_core import Exchange, Router, Session, Worker
from router_core.testing.conformance.passing import bodies
from router_core.testing.conformance.subject import Bench, Nonconformance, Subject, named

TURNS = 2
MAX_OBJECTS = 300_000
"""Objects of the plugin that are looked at."""
NOT_ENTERED = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.CodeType,
    types.FrameType,
    asyncio.Future,
    asyncio.AbstractEventLoop,
    logging.Logger,
    Router,
    Worker,
)
CORE_TABLES = tuple(
    f"router_core.{part}" for part in ("sessions", "workers", "holds", "control", "tasks", "plans", "app")
)
"""Modules whose objects are the core's own, whoever holds them."""


async def a_closed_session_leaves_nothing(subject: Subject) -> None:
    """A session is opened, used and deleted: no task, no exchange, no value that names it stays."""
    async with subject.bench() as bench:
        await bench.ask("/warm", method="GET")
        await bench.settle(1, "after the first request")
        tasks, states = asyncio.all_tasks(), bench.worker_states()
        ids = [await _one_session(bench, f"conformance-{number}-{id(bench):x}") for number in range(2)]
        await bench.settle(1 + len(ids) * TURNS * 2, "after two sessions")
        bench.check_errors("after two sessions")
        await bench.check_tasks(tasks, "after two closed sessions")
        _check_kept(bench, ids)
        for worker, names in bench.worker_states().items():
            for name in names - states.get(worker, set()):
                if any(session_id in name for session_id in ids):
                    raise Nonconformance(f"it keeps a key {name!r} on a worker for each session")


async def _one_session(bench: Bench, session_id: str) -> str:
    opened = await bench.ask("/sessions", json={"session_id": session_id, **bench.subject.session})
    if opened.status != 200:
        raise Nonconformance(f"a session cannot be opened: {opened.status} {opened.body[:300]!r}")
    target, body = next(pair for pair in bodies(bench.subject.engine) if "chat" in pair[0])
    for _ in range(TURNS):
        for headers, path in (((), f"/sessions/{session_id}{target}"), ([("x-session-id", session_id)], target)):
            answer = await bench.ask(path, headers, json=body)
            if answer.status != 200:
                raise Nonconformance(f"a turn of a session got {answer.status}: {answer.body[:300]!r}")
    shown = await bench.ask(f"/sessions/{session_id}", method="GET")
    if shown.status != 200 or not isinstance(orjson.loads(shown.body), dict):
        raise Nonconformance(f"GET /sessions/{{id}} got {shown.status} while it is on")
    deleted = await bench.ask(f"/sessions/{session_id}", method="DELETE")
    if deleted.status != 204:
        raise Nonconformance(f"a session cannot be deleted: {deleted.status} {deleted.body[:300]!r}")
    return session_id


def _check_kept(bench: Bench, ids: list[str]) -> None:
    plugin = next(p for p in bench.running.application.registry.plugins if p.name == bench.name)
    gc.collect()
    slots = [name for cls in type(plugin.instance).__mro__ for name in getattr(cls, "__slots__", ())]
    held = {name: getattr(plugin.instance, name) for name in slots if hasattr(plugin.instance, name)}
    held |= getattr(plugin.instance, "__dict__", {})
    found = {
        name: what for name, value in held.items() if _is_entered(value) and (what := _search(value, frozenset(ids)))
    }
    left = [f"{name} holds {what}" for name, what in found.items() if name not in bench.subject.keeps]
    if left:
        raise Nonconformance(f"after its sessions have closed it still keeps them: {named(left)}")


def _search(value: Any, ids: frozenset[str]) -> str | None:
    """What below ``value`` belongs to one of these sessions, if anything does, and by which way it is held."""
    seen, waiting = {id(value)}, deque([(value, type(value).__name__)])
    while waiting and len(seen) < MAX_OBJECTS:
        one, way = waiting.popleft()
        if isinstance(one, str) and one in ids:
            return f"the session's id {one!r} ({way})"
        if isinstance(one, Session) and one.id in ids:
            return f"the session itself, {one!r} ({way})"
        if isinstance(one, Exchange) and one.session_id in ids:
            return f"an exchange of the session, {one!r} ({way})"
        inside = [*one.keys(), *one.values()] if isinstance(one, dict) else gc.get_referents(one)
        for inner in inside:  # a dict of texts does not show its keys to the collector
            if id(inner) not in seen and _is_entered(inner):
                seen.add(id(inner))
                waiting.append((inner, f"{way} > {type(inner).__name__}"))
    return None


def _is_entered(value: object) -> bool:
    return not isinstance(value, NOT_ENTERED) and type(value).__module__ not in CORE_TABLES
