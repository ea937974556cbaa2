"""tito and routed_experts together: the rows that one collects are those of the other's trace, each moved once."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import orjson
import pybase64
import pytest
from router_tito.plugin import Tito

from router_core.reference_engine import running_engine
from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import exchange_once
from router_core.testing.router import RunningRouter, running_router

LAYERS, TOP_K = 4, 2
PLUGINS = {
    "hf_tokenizer": {"path": str(ASSETS)},
    "routed_experts": {"layers": LAYERS, "top_k": TOP_K, "num_experts": 8, "dense_layers": []},
}


class Chat:
    """One agent's session."""

    def __init__(self, router: RunningRouter, worker_url: str) -> None:
        self.router = router
        self.worker_port = int(worker_url.rsplit(":", 1)[1])
        self.messages: list[dict[str, str]] = []

    async def say(self, text: str, *, stream: bool = False, headers: Any = ()) -> bytes:
        self.messages.append({"role": "user", "content": text})
        asked = {"model": "reference", "messages": self.messages, "max_tokens": 10, "stream": stream}
        answer = await exchange_once(
            self.router.port, target="/sessions/s/v1/chat/completions", headers=headers, json=asked, timeout_s=30
        )
        assert answer.status == 200, answer.body
        assert "x-router-untrainable" not in dict(answer.headers)
        if stream:
            parts = [orjson.loads(part[6:]) for part in answer.body.split(b"\n\n") if part.startswith(b"data: {")]
            assert all(part["choices"] for part in parts)
            deltas = [part["choices"][0]["delta"] for part in parts]
            said = {key: "".join(delta.get(key) or "" for delta in deltas) for key in ("content", "reasoning_content")}
        else:
            said = orjson.loads(answer.body)["choices"][0]["message"]
        self.messages.append({"role": "assistant", **{key: value for key, value in said.items() if value}})
        self.messages[-1].setdefault("content", "")
        return answer.body

    @property
    def branch(self) -> Any:
        [tito] = [plugin.instance for plugin in self.router.application.registry.plugins if plugin.name == "tito"]
        assert isinstance(tito, Tito)
        [branch] = tito.traces["s"].trace.branches()
        return branch

    async def computed(self, token_ids: list[int]) -> np.ndarray:
        """The engine's own rows for these tokens but the last."""
        asked = {"model": "reference", "prompt": token_ids, "max_tokens": 1, "return_routed_experts": True}
        told = (await exchange_once(self.worker_port, target="/v1/completions", json=asked, timeout_s=30)).json()
        if "sglext" in told:
            raw = pybase64.b64decode(told["sglext"]["routed_experts"])
            rows = np.frombuffer(raw, "<i4")
        else:
            rows = np.load(io.BytesIO(pybase64.b64decode(told["choices"][0]["routed_experts"])))
        return rows.reshape(-1, LAYERS, TOP_K)[: len(token_ids) - 1]


@asynccontextmanager
async def chat(dialect: str, enabled: tuple[str, ...], **options: Any) -> AsyncIterator[Chat]:
    async with (
        running_engine(dialect=dialect, seed=3) as engine,
        running_router([engine.url], enabled=("hf_tokenizer", *enabled), plugins=PLUGINS, **options) as router,
    ):
        await router.application.outside.find_tokenizer(None).ready()
        await exchange_once(router.port, target="/sessions", json={"session_id": "s"})
        yield Chat(router, engine.url)


@pytest.mark.parametrize(("dialect", "streams"), [("sglang", (False, True, False)), ("vllm", (False, False, False))])
async def test_the_trace_has_every_row_and_each_was_moved_once(dialect: str, streams: tuple[bool, ...]) -> None:
    async with chat(dialect, ("tito", "session_affinity", "routed_experts")) as agent:
        for number, stream in enumerate(streams):
            body = await agent.say(f"question {number}", stream=stream)
            assert not any(word in body for word in (b"sglext", b"meta_info", b'"routed_experts":"'))
        branch = agent.branch
        token_ids = list(branch.token_ids)
        assert branch.reasons == []
        assert len(branch.transitions) == 3
        assert (branch.routed_experts == await agent.computed(token_ids)).all()
        metrics = agent.router.application.outside.metrics()
        assert f"router_routed_experts_rows_total {len(token_ids) - 1}\n" in metrics


async def test_what_is_missing_makes_the_branch_incomplete_with_the_reason() -> None:
    async with chat("sglang", ("tito", "routed_experts")) as agent:
        await agent.say("one", headers={"x-router-plugins": "-routed_experts"})
        assert agent.branch.routed_experts is None
        assert agent.branch.reasons == []  # nobody asked for any
    async with (
        running_engine(seed=3, routed_experts=False) as engine,
        running_router([engine.url], enabled=("hf_tokenizer", "tito", "routed_experts"), plugins=PLUGINS) as router,
    ):
        await router.application.outside.find_tokenizer(None).ready()
        await exchange_once(router.port, target="/sessions", json={"session_id": "s"})
        agent = Chat(router, engine.url)
        await agent.say("one")
        assert agent.branch.routed_experts is None
        assert "missing: routed experts were asked for and none came" in agent.branch.reasons


async def test_all_four_run_together_and_each_serves_its_own_path() -> None:
    async with chat("sglang", ("tito", "radix_cache", "session_affinity", "routed_experts")) as agent:
        await agent.say("one")
        told = await exchange_once(
            agent.router.port, headers={"x-session-id": "t"}, json={"text": "hello", "rid": "r1"}, timeout_s=30
        )
        text = "hello" + told.json()["text"]
        found = await exchange_once(agent.router.port, target="/retrieve_from_text", json={"text": text})
        rows = await exchange_once(agent.router.port, "GET", "/routed_experts/r1")
        assert found.json()["complete"] is True
        assert rows.status == 200
        assert agent.branch.routed_experts is not None
        shown = (await exchange_once(agent.router.port, "GET", "/sessions/s")).json()
        assert shown["routed_experts"][0]["complete"] is True
