"""A generator that runs several agents at once over one router in its own loop, and hands on what a trainer takes.

The agents know an OpenAI base URL and nothing else. Without --worker two small reference engines are started, so that
it runs anywhere: python generator.py
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import openai
from router_tito.exporters import ExportOptions, TraceOutcome, export, find_composer
from router_tito.proxy import TITOProxy
from router_tito.trace import Trace

from router_core.reference_engine import running_engine
from router_core.reference_engine.tokenizer import ASSETS

QUESTIONS = ("What is a router?", "Name a prime.", "Say something kind.")
FOLLOW_UPS = ("Are you sure?", "Say it in other words.")


async def run_agent(base_url: str, model: str, question: str, seed: int) -> list[dict[str, Any]]:
    """An agent as any other: its own messages, its own loop. Gives the conversation."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="unused") as client:
        messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
        for follow_up in (*FOLLOW_UPS, None):
            answer = await client.chat.completions.create(model=model, messages=messages, max_tokens=12, seed=seed)
            messages.append(answer.choices[0].message.model_dump(exclude_none=True))
            if follow_up is not None:
                messages.append({"role": "user", "content": follow_up})
        return messages


def judge(messages: Sequence[dict[str, Any]]) -> float:
    """A stand-in for an environment: how many different letters the last answer has."""
    last = messages[-1]
    return float(len(set("".join(str(last.get(key, "")) for key in ("reasoning_content", "reasoning", "content")))))


class Generator:
    """Rolls out questions, some times each."""

    def __init__(self, proxy: TITOProxy, model: str) -> None:
        self._proxy = proxy
        self._model = model

    async def generate(self, questions: Sequence[str], repetitions: int) -> list[TraceOutcome]:
        """All rollouts at once; one outcome each, in order."""
        async with self._proxy.serving():
            rollouts = [
                self._roll_out(question, f"{index}_{repetition}", seed=100 * index + repetition + 2)
                for index, question in enumerate(questions)
                for repetition in range(repetitions)
            ]
            return await asyncio.gather(*rollouts)

    async def _roll_out(self, question: str, trajectory_id: str, seed: int) -> TraceOutcome:
        trace = Trace()
        async with self._proxy.register(trace, session_id=f"rollout-{trajectory_id}", cache_salt="weights-0") as handle:
            messages = await run_agent(handle.base_url, self._model, question, seed)
        return handle.outcome(reward=judge(messages), trajectory_id=trajectory_id)


def show(outcomes: Sequence[TraceOutcome]) -> None:
    """One line a row, then what SkyRL would take."""
    print("session        tokens trained turns bridged version reward  complete")
    for outcome in outcomes:
        for row in export(outcome, ExportOptions()).rows:
            bridged = sum(turn.how == "bridge" for turn in row.turns)
            version = "/".join(sorted(set(row.version_list))) or "unknown"
            print(
                f"{row.session_id:<14} {len(row.tokens):>6} {sum(row.loss_mask):>7} {len(row.turns):>5} {bridged:>7}"
                f" {version:>7} {row.reward:>6}  {row.complete}"
            )
    output = find_composer("skyrl")(ExportOptions(strict=True)).compose(outcomes)
    print(
        "GeneratorOutput:", ", ".join(f"{key} {len(value)}" for key, value in output.items() if isinstance(value, list))
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", action="append", help="URL of an SGLang or vLLM server; may be given again")
    parser.add_argument("--tokenizer", default=str(ASSETS), help="directory or hub name of the model's tokenizer")
    parser.add_argument("--model", default="reference")
    parser.add_argument("--repetitions", type=int, default=2)
    options = parser.parse_args()
    async with AsyncExitStack() as stack:
        workers = options.worker or [
            (await stack.enter_async_context(running_engine(dialect=dialect, weight_version="0"))).url
            for dialect in ("sglang", "vllm")
        ]
        generator = Generator(TITOProxy(workers, tokenizer=options.tokenizer), options.model)
        show(await generator.generate(QUESTIONS, options.repetitions))


if __name__ == "__main__":
    asyncio.run(main())
