"""Text in, exact tokens and experts out: radix_cache, routed_experts and session_affinity in one run over two engines.

The engines are real (a small mixture of experts in numpy), so what comes back is compared with their own computation.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pybase64
import pytest

from router_core.reference_engine import running_engine
from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import ScriptedWorker, exchange_once
from router_core.testing.router import RunningRouter, running_router

LAYERS, TOP_K, EXPERTS = 4, 2, 8
PLUGINS = {
    "hf_tokenizer": {"path": str(ASSETS)},
    "routed_experts": {"layers": LAYERS, "top_k": TOP_K, "num_experts": EXPERTS, "dense_layers": []},
}
ALL = ("hf_tokenizer", "radix_cache", "session_affinity", "routed_experts", "least_inflight")
SAMPLING = {"max_new_tokens": 12, "temperature": 1.0}


@dataclass(frozen=True)
class Run:
    router: RunningRouter
    engines: list[str]

    async def generate(self, text: str, session: str, *, headers: dict[str, str] | None = None, **more: Any) -> Any:
        asked = {"text": text, "sampling_params": SAMPLING, **more}
        answer = await exchange_once(
            self.router.port, headers={"x-session-id": session, **(headers or {})}, json=asked, timeout_s=30
        )
        assert answer.status == 200, answer.body
        return answer

    async def retrieve(self, text: str, **narrow: Any) -> dict[str, Any]:
        answer = await exchange_once(self.router.port, target="/retrieve_from_text", json={"text": text, **narrow})
        assert answer.status == 200, answer.body
        return answer.json()

    async def rows(self, rid: str) -> np.ndarray:
        answer = await exchange_once(self.router.port, "GET", f"/routed_experts/{rid}")
        assert answer.status == 200, answer.body
        return np.load(io.BytesIO(answer.body))

    async def computed(self, tokens: list[int], first_sampled: int) -> tuple[np.ndarray, list[float]]:
        """The engine's own rows for all tokens but the last, and its logprobs from ``first_sampled`` on."""
        asked = {
            "input_ids": tokens,
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
            "return_routed_experts": True,
            "return_logprob": True,
            "logprob_start_len": first_sampled - 1,
        }
        port = int(self.engines[0].rsplit(":", 1)[1])
        meta = (await exchange_once(port, json=asked, timeout_s=30)).json()["meta_info"]
        rows = np.frombuffer(pybase64.b64decode(meta["routed_experts"]), "<i4").reshape(-1, LAYERS, TOP_K)
        return rows[: len(tokens) - 1], [entry[0] for entry in meta["input_token_logprobs"][1:]]


@asynccontextmanager
async def run(**options: Any) -> AsyncIterator[Run]:
    async with (
        running_engine(seed=1) as first,
        running_engine(seed=2) as second,
        running_router([first.url, second.url], enabled=ALL, plugins=PLUGINS, **options) as router,
    ):
        await router.application.outside.find_tokenizer(None).ready()
        yield Run(router, [first.url, second.url])


async def test_three_turns_of_four_siblings_come_back_exactly_with_their_experts() -> None:
    async with run() as rollout:
        for sibling in range(4):
            session, text = f"s{sibling}", "user: tell me a word\nassistant:"
            workers = set()
            for turn in range(3):
                answer = await rollout.generate(text, session, rid=f"{session}-{turn}", stream=bool(turn % 2))
                assert b"logprobs" not in answer.body
                assert b"routed_experts" not in answer.body
                workers.add(answer.get("x-router-worker"))
                last = answer.body.split(b"data: ")[-2].strip() if turn % 2 else answer.body
                text += orjson.loads(last)["text"] + "\nuser: and another\nassistant:"
            assert len(workers) == 1  # the affinity saw the same session that the cache did
            whole = text.removesuffix("\nuser: and another\nassistant:")
            told = await rollout.retrieve(whole, session_id=session)
            assert told["complete"] is True
            first_sampled = told["loss_mask"].index(1)
            rows, logprobs = await rollout.computed(told["tokens"], first_sampled)
            kept = await rollout.rows(f"{session}-2")
            assert kept.shape == rows.shape == (len(told["tokens"]) - 1, LAYERS, TOP_K)
            assert (kept == rows).all()
            sampled = np.array(told["loss_mask"][first_sampled:], bool)
            told_logprobs = np.array(told["rollout_logp"][first_sampled:])
            assert np.allclose(told_logprobs[sampled], np.array(logprobs)[sampled], atol=1e-4)


async def test_in_a_session_each_row_is_moved_once() -> None:
    async with run() as rollout:
        text = "user: tell me a word\nassistant:"
        for turn in range(4):
            answer = await rollout.generate(text, "s", rid=f"r{turn}")
            text += answer.json()["text"] + "\nmore:"
        kept = len(await rollout.rows("r3"))
        metrics = rollout.router.application.outside.metrics()
        [moved] = [line for line in metrics.splitlines() if line.startswith("router_routed_experts_rows_total ")]
        assert int(moved.split()[1]) == kept


@pytest.mark.parametrize("by", ["header", "profile"])
@pytest.mark.parametrize("off", [{"radix_cache"}, {"routed_experts"}, {"radix_cache", "routed_experts"}])
async def test_each_is_switched_off_for_a_request_and_leaves_no_trace(off: set[str], by: str) -> None:
    profiles = {"some": {"disable": sorted(off)}}
    headers = {"x-router-profile": "some"} if by == "profile" else {"x-router-plugins": ",".join(f"-{n}" for n in off)}
    async with (
        ScriptedWorker() as worker,
        running_router([worker.url], enabled=ALL, plugins=PLUGINS, profiles=profiles) as router,
    ):
        await router.application.outside.find_tokenizer(None).ready()
        asked = b'{"text" : "hi there", "rid":"r1"}'
        worker.say("x")
        await exchange_once(router.port, headers={"x-session-id": "s", **headers}, body=asked)
        sent = worker.requests[0]
        assert ("text" in sent.json()) == ("radix_cache" in off)
        assert ("return_logprob" in sent.json()) == ("radix_cache" not in off)
        assert ("return_routed_experts" in sent.json()) == ("routed_experts" not in off)
        if len(off) == 2:
            assert sent.body == asked
            assert "accept-encoding" not in [name.lower() for name, _ in sent.headers]
        stats = (await exchange_once(router.port, "GET", "/radix_cache/stats")).json()
        assert stats["requests_with_text"] == int("radix_cache" not in off)
        shown = await exchange_once(router.port, "GET", "/routed_experts/r1")
        assert (shown.status == 404) == ("routed_experts" in off)
