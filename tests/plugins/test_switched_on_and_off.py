"""tito, radix_cache, session_affinity and routed_experts, each on or off: one that is off is as if it were not there.

A router that has all four, of which a request wants some, is compared with one that has only those: the worker gets the
same bytes, the client the same answer, and nothing is kept or counted by the others.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import Experts, ScriptedWorker, exchange_once
from router_core.testing.router import RunningRouter, running_router

FOUR = ("tito", "radix_cache", "session_affinity", "routed_experts")
SUBSETS = [tuple(name for name, is_on in zip(FOUR, on, strict=True) if is_on) for on in product((0, 1), repeat=4)]
KEEPS = {
    "tito": "router_tito_nodes",
    "radix_cache": "router_radix_cache_trajectories",
    "session_affinity": "router_affinity_sessions",
    "routed_experts": "router_routed_experts_entries",
}
PLUGINS = {
    "hf_tokenizer": {"path": str(ASSETS)},
    "routed_experts": {"layers": 2, "top_k": 2, "num_experts": 8, "dense_layers": []},
}
TEXT = b'{"text" : "hello there", "rid":"t1", "sampling_params":{"max_new_tokens":3}}'
IDS = b'{"input_ids":[5, 6,7],"rid":"i1", "return_logprob" : true}'
CHAT = b'{"model":"m", "messages" :[{"role":"user","content":"hi"}],"max_tokens":3, "rid":"c1"}'
CHAT_TARGET = "/sessions/chat/v1/chat/completions"
PATHS = (
    ("/generate", TEXT),
    ("/generate", IDS),
    ("/generate", TEXT.replace(b"t1", b"t2").replace(b"{", b'{"stream":true,', 1)),
    (CHAT_TARGET, CHAT),
    (CHAT_TARGET, CHAT.replace(b"c1", b"c2").replace(b"{", b'{"stream":true,', 1)),
)


@dataclass(frozen=True)
class Seen:
    """What went through for one request."""

    sent_target: bytes
    sent_body: bytes
    sent_headers: list[tuple[str, str]]
    status: int
    headers: list[tuple[str, str]]
    body: bytes


@asynccontextmanager
async def serving(names: Sequence[str], **options: Any) -> AsyncIterator[tuple[RunningRouter, ScriptedWorker]]:
    async with ScriptedWorker() as worker:
        worker.engine.experts = Experts(2, 2, 8)
        enabled = ("hf_tokenizer", *names, "least_inflight")
        async with running_router([worker.url], enabled=enabled, plugins=PLUGINS, **options) as router:
            await router.application.outside.find_tokenizer(None).ready()
            yield router, worker


async def run(router: RunningRouter, worker: ScriptedWorker, headers: Mapping[str, str]) -> list[Seen]:
    """Each path once, in sessions of their own."""
    opened = await exchange_once(router.port, target="/sessions", json={"session_id": "chat"})
    assert opened.status == 200, opened.body
    seen = []
    for number, (target, body) in enumerate(PATHS):
        worker.say("x y", ids=[8, 9])
        own = {} if target.startswith("/sessions") else {"x-session-id": f"s{number}"}
        answer = await exchange_once(router.port, target=target, headers={**own, **headers}, body=body)
        sent = worker.requests[-1]
        ports = {str(worker.port): "WORKER", str(router.port): "ROUTER"}
        seen.append(
            Seen(
                sent.target,
                sent.body,
                _told(sent.headers, ports),
                answer.status,
                _told(answer.headers, ports),
                answer.body,
            )
        )
    return seen


def _told(headers: Sequence[tuple[Any, Any]], ports: Mapping[str, str]) -> list[tuple[str, str]]:
    """Names in small letters and values; without what differs from run to run."""
    told = []
    for pair in headers:
        name, value = (part.decode() if isinstance(part, bytes) else part for part in pair)
        for port, stands_for in ports.items():
            value = value.replace(port, stands_for)
        value = re.sub(r"w-[0-9a-f]{8,}", "ID", value)  # a worker's id is made of its address
        if name.lower() not in ("date", "x-request-id"):
            told.append((name.lower(), value))
    return sorted(told)


def kept_by(router: RunningRouter) -> set[str]:
    """Which of the four keep something, by their own count."""
    lines = [line.split() for line in router.application.outside.metrics().splitlines() if not line.startswith("#")]
    counted = {words[0]: float(words[1]) for words in lines}
    return {name for name, gauge in KEEPS.items() if counted.get(gauge)}


@pytest.mark.parametrize("by", ["header off", "header on", "profile"])
@pytest.mark.parametrize("on", SUBSETS, ids=lambda on: "+".join(on) or "none")
async def test_what_is_off_is_as_if_it_were_not_there(on: tuple[str, ...], by: str) -> None:
    async with serving(on) as (router, worker):
        expected = await run(router, worker, {})
        assert kept_by(router) == set(on)
    off = [name for name in FOUR if name not in on]
    profiles = {"some": {"enable": list(on), "disable": off}}
    if by == "header on":  # off by default: only loaded
        options: dict[str, Any] = {"router": {"available": list(FOUR)}}
        names: Sequence[str] = ()
        headers = {"x-router-plugins": ",".join(f"+{name}" for name in on)} if on else {}
    else:
        options, names = {"profiles": profiles}, FOUR
        minus = {"x-router-plugins": ",".join(f"-{name}" for name in off)} if off else {}
        headers = {"x-router-profile": "some"} if by == "profile" else minus
    async with serving(names, **options) as (router, worker):
        assert await run(router, worker, headers) == expected
        assert kept_by(router) == set(on)
