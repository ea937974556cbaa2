"""The demo with the engine that comes with the router: multi-turn rollouts as a trainer sends them.

Ids go to ``POST /generate``; ids, logprobs and routed experts come back.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pybase64

from router_core.demo.cast import Rollout, TurnFailed
from router_core.demo.failure import DemoFailure
from router_core.demo.printing import Stopwatch
from router_core.demo.processes import Process
from router_core.reference_engine.options import ModelConfig
from router_core.sse import EventSplitter, event_data

MAX_NEW_TOKENS = 16
QUESTIONS = (
    "How many apples are left?",
    "And if two friends come along?",
    "Show the steps, please.",
    "Write it as one number.",
)


STEP_DELAY_S = "0.01"
"""Seconds each token takes at least, so that turns are under way when the worker is killed."""
PROMISE = """\
        Promised: what the router passes on is what the workers answer themselves. A worker is killed on the way:
        turns fail only until its quarantine, and are asked again. Started anew, it serves again by itself."""
LEGEND = """\
        turn: rollout and number. prompt, sampled: tokens. logprob: mean of the sampled tokens', in nats. experts:
        routed experts, rows x layers x experts of each. events: parts of a streamed answer, - where it came whole.
  time  turn         worker    prompt  sampled  logprob  experts     events  first ids       text"""


class ReferenceCast:
    """Two engines with the tiny model of ``router-core engine``, and rollouts in its native dialect."""

    introduction = "Two engines start. Their model is tiny and random: its words mean nothing, its numbers are true."
    promise = PROMISE
    rollouts = "A turn sends all ids so far; every second one is streamed."
    legend = LEGEND
    more_turns = 5
    deadline_s = 20.0

    def __init__(self, client: aiohttp.ClientSession) -> None:
        self._client = client
        self._router_url = ""
        self._questions: list[list[int]] = []

    def worker(self, name: str, directory: Path) -> Process:
        return Process(name, directory, "engine", "--step-delay-s", STEP_DELAY_S)

    async def begin(self, router_url: str, workers: Sequence[Process], watch: Stopwatch) -> None:
        self._router_url = router_url
        self._questions = await tokenized_questions(self._client, router_url)

    def rollout(self, number: int) -> IdRollout:
        return IdRollout(number, self._client, self._router_url, self._questions)

    async def end(self, workers: Sequence[Process], rollouts: Sequence[Rollout], watch: Stopwatch) -> None:
        asked = itertools.cycle(worker.url for worker in workers)
        mine = [rollout for rollout in rollouts if isinstance(rollout, IdRollout)]
        await asyncio.gather(*(rollout.compare_with(next(asked)) for rollout in mine))
        watch.say("The newest turns, sent to a worker directly: the same tokens and experts.")

    def example(self, router_url: str) -> str:
        body = '{"text": "Hello", "sampling_params": {"max_new_tokens": 8}, "return_logprob": true}'
        return f"curl {router_url}/generate -H 'content-type: application/json' -d '{body}'"


@dataclass(frozen=True, slots=True)
class IdTurn:
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

    def line(self, what: str, worker: str) -> str:
        """Who served it, tokens, mean logprob in nats, shape of the routed experts, and how it begins."""
        shape = "x".join(str(length) for length in self.experts.shape)
        mean = sum(self.logprobs) / len(self.logprobs)
        ids = ", ".join(str(token_id) for token_id in self.output_ids[:3])
        text = self.text[:20].encode("ascii", "replace").decode()
        return (
            f"{what:<11}  {worker}  {self.prompt_tokens:>5}  {len(self.output_ids):>7}  {mean:>7.3f}"
            f"  {shape:<10}  {self.events or '-':>6}  {ids:<14}  {text!r}"
        )


async def tokenized_questions(client: aiohttp.ClientSession, router_url: str) -> list[list[int]]:
    """The user's questions as ids, by a worker: the router passes ``/tokenize`` on like any path."""
    questions = []
    for question in QUESTIONS:
        prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        async with client.post(f"{router_url}/tokenize", json={"prompt": prompt}) as answer:
            answer.raise_for_status()
            questions.append((await answer.json())["tokens"])
    return questions


class IdRollout:
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
        self._newest: tuple[dict[str, Any], IdTurn] | None = None

    @property
    def is_done(self) -> bool:
        return self.turns == len(self._questions)

    async def turn(self) -> IdTurn:
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

    async def _ask(self, url: str, body: dict[str, Any]) -> IdTurn:
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


def _checked(told: dict[str, Any], prompt_tokens: int, worker_url: str | None, events: int) -> IdTurn:
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
    return IdTurn(worker_url, prompt_tokens, output_ids, logprobs, experts, told["text"], events)
