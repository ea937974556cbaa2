"""A real model, an agent with the openai SDK, and samples: they hold what the model computes of their ids."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import openai
import pytest
from capture_kit import Capturing, capturing, reference_tokenizer
from router_tito.experts import Rows
from router_tito.exporters import build_training_arrays, decode
from tito_kit import system, user

from router_core.reference_engine import running_engine
from router_core.reference_engine.recompute import recompute
from router_core.testing import exchange_once

EXPERTS = {"routed_experts": True, "experts_shape": (4, 2)}
TURNS = 3


@asynccontextmanager
async def after_an_agent(dialect: str) -> AsyncIterator[tuple[Any, Capturing]]:
    """An engine and a router through which an agent has made its turns."""
    async with (
        running_engine(dialect=dialect, seed=1, weight_version="1") as engine,
        capturing(engine.url, tokenizer=reference_tokenizer(), **EXPERTS) as made,
    ):
        await made.open()
        url = f"http://127.0.0.1:{made.port}/sessions/s/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
            messages: list[Any] = [system("You are terse."), user("List the files.")]
            for number in range(TURNS):
                answer = await client.chat.completions.create(model="reference", messages=messages, max_tokens=12)
                messages += [answer.choices[0].message.model_dump(exclude_none=True), user(f"and {number}?")]
        yield engine, made


@pytest.mark.parametrize("encoding", ["json", "npz", "safetensors"])
@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_samples_hold_what_the_model_computes_of_their_tokens(dialect: str, encoding: str) -> None:
    async with after_an_agent(dialect) as (engine, made):
        answer = await exchange_once(made.port, target=f"/sessions/s/samples?strict=true&encoding={encoding}")
        assert answer.status == 200, answer.body
        (row,) = decode(answer.body, encoding)["samples"]
        arrays = build_training_arrays(row)
        tokens = [*arrays.prompt_ids.tolist(), *arrays.response_ids.tolist()]
        truth = recompute(engine.engine.model, tokens)
        assert arrays.num_turns == len(row["turns"]) == TURNS
        trained = 0
        for place, (is_trained, logprob) in enumerate(zip(row["loss_mask"], row["logprobs"], strict=True)):
            if is_trained:
                assert logprob == pytest.approx(truth.logprob(place, tokens[place]), abs=1e-5)
                trained += 1
            else:
                assert logprob == 0.0
        assert trained == sum(turn["end"] - turn["start"] for turn in row["turns"]) > 0
        experts: Rows | None = arrays.routed_experts
        assert experts is not None
        assert experts.shape == (len(tokens) - 1, 4, 2)
        assert np.array_equal(experts, truth.experts[: len(tokens) - 1])
        versions = {span["version"] for span in row["weight_versions"]}
        assert versions == ({"1"} if dialect == "sglang" else {None})
