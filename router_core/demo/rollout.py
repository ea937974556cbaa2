"""A multi-turn rollout as a trainer sends it: ids to ``POST /generate``; ids, logprobs and routed experts back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
import pybase64

from router_core.demo.failure import DemoFailure
from router_core.reference_engine.options import ModelConfig
from router_core.sse import EventSplitter, event_data

MAX_NEW_TOKENS = 16
QUESTIONS = (
    "How many apples are left?",
    "And if two friends come along?",
    "Show the steps, please.",
    "Write it as one number.",
)


class TurnFailed(Exception):
    """A turn was not answered: the router said so, or the transfer broke."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answered turn; ``logprobs`` (nats) are as long as ``output_ids``."""

    worker_url: str | None
    prompt_tokens: int
    output_ids: list[int]
    logprobs: list[float]
    experts: np.ndarray[Any, np.dtype[np.int32]]
    """int32[prompt + output - 1, num_layers, top_k]"""
    text: str
    events: int
    """How many events of a stream it came in; 0 where it was not streamed."""


async def tokenized_questions(client: aiohttp.ClientSession, router_url: str) -> list[list[int]]:
    """The user's questions as ids, by a worker: the router passes ``/tokenize`` on like any path."""
    questions = []
    for question in QUESTIONS:
        prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        async with client.post(f"{router_url}/tokenize", json={"prompt": prompt}) as answer:
            answer.raise_for_status()
            questions.append((await answer.json())["tokens"])
    return questions


class Rollout:
    """One agent run, a session of its own. Every turn sends all ids so far; it goes on from what was sampled."""

    def __init__(
        self, number: int, client: aiohttp.ClientSession, router_url: str, questions: Sequence[list[int]]
    ) -> None:
        self.name = f"r{number}"
        self.turns = 0
        self._client = client
        self._router_url = router_url
        self._questions = questions
        self._seed = 1000 * number
        self._ids: list[int] = []
        self._newest: tuple[dict[str, Any], Turn] | None = None

    @property
    def is_done(self) -> bool:
        return self.turns == len(self._questions)

    async def turn(self) -> Turn:
        """Asks the next question; every second turn is streamed. Raises TurnFailed: the turn may be asked again."""
        input_ids = self._ids + self._questions[self.turns]
        body = {
            "input_ids": input_ids,
            "sampling_params": {
                "temperature": 0.8,
                "max_new_tokens": MAX_NEW_TOKENS,
                "sampling_seed": self._seed + self.turns,
            },
            "return_logprob": True,
            "return_routed_experts": True,
            "stream": self.turns % 2 == 1,
        }
        turn = await self._ask(self._router_url, body)
        self._ids = input_ids + turn.output_ids
        self.turns += 1
        self._newest = body, turn
        return turn

    async def compare_with(self, worker_url: str) -> None:
        """Sends the newest turn to a worker itself. Raises DemoFailure where its answer differs from the router's."""
        if self._newest is not None:
            body, turn = self._newest
            direct = await self._ask(worker_url, body)
            if direct.output_ids != turn.output_ids or not np.array_equal(direct.experts, turn.experts):
                raise DemoFailure(f"{self.name}: asked directly, {worker_url} gives other tokens or experts")

    async def _ask(self, url: str, body: dict[str, Any]) -> Turn:
        try:
            async with self._client.post(f"{url}/generate", json=body, headers={"x-session-id": self.name}) as answer:
                if answer.status != 200:
                    raise TurnFailed(f"{answer.status} {answer.headers.get('x-router-error') or await answer.text()}")
                worker_url = answer.headers.get("x-router-worker")
                if body["stream"]:
                    told, events = await _last_event(answer)
                else:
                    told, events = await answer.json(), 0
        except (aiohttp.ClientError, TimeoutError) as error:
            raise TurnFailed(f"the transfer broke ({type(error).__name__})") from error
        return _checked(told, len(body["input_ids"]), worker_url, events)


async def _last_event(answer: aiohttp.ClientResponse) -> tuple[dict[str, Any], int]:
    """The last event before ``[DONE]``; each of ``/generate``'s holds all that was sampled so far."""
    splitter, newest, events = EventSplitter(), b"", 0
    async for chunk in answer.content.iter_any():
        for event in splitter.feed(chunk):
            if (data := event_data(event)) not in (None, b"[DONE]"):
                newest, events = data or b"", events + 1
    return json.loads(newest), events


def _checked(told: dict[str, Any], prompt_tokens: int, worker_url: str | None, events: int) -> Turn:
    """The answer as a turn. Raises DemoFailure where its parts do not fit each other."""
    shape = ModelConfig()
    info, output_ids = told["meta_info"], told["output_ids"]
    logprobs = [logprob for logprob, _, _ in info["output_token_logprobs"]]
    experts = np.frombuffer(pybase64.b64decode(info["routed_experts"]), "<i4")
    experts = experts.reshape(-1, shape.num_hidden_layers, shape.num_experts_per_tok)
    if [token_id for _, token_id, _ in info["output_token_logprobs"]] != output_ids:
        raise DemoFailure("the logprobs are not those of the sampled tokens")
    if len(experts) != prompt_tokens + len(output_ids) - 1:
        raise DemoFailure(f"{len(experts)} rows of experts for {prompt_tokens} + {len(output_ids)} tokens")
    return Turn(worker_url, prompt_tokens, output_ids, logprobs, experts, told["text"], events)
