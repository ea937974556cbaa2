"""What the text cache costs in the router: python tests/bench/text_router.py [--rounds 40] [--tokenizer DIRECTORY].

A prompt of 30,000 characters and an answer of 2,000 (and 20,000) tokens with logprobs: CPU time of the router's process
per request, with the plugin off, on for new prompts, on for the next turn of each (1,000 characters more), and on for
siblings of one prompt; then a retrieval of all of it.
The worker and the client are in this process. Without ``--tokenizer`` it is the reference engine's.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections.abc import Callable

import orjson
from measured_router import MeasuredRouter, measured_router

from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import RawClient, ScriptedRequest, ScriptedWorker
from router_core.testing.connection import Connection

WORDS = ("the", "model", "samples", "words", "and", "a", "router", "gives", "them", "back", "with", "all", "tokens")


def prompt_of(number: int, characters: int = 30_000) -> str:
    source = random.Random(number)
    return f"prompt {number}: " + " ".join(source.choice(WORDS) for _ in range(characters // 5))[:characters]


def answers(tokens: int, token_id: int, word: str) -> Callable[[ScriptedRequest, Connection], object]:
    logprobs = [[-0.001 * (number % 1000) - 0.0001, token_id, None] for number in range(tokens)]
    count = 0

    async def handler(request: ScriptedRequest, connection: Connection) -> bool:
        nonlocal count
        count += 1
        ids = request.json().get("input_ids")
        meta = {
            "id": f"rid-{count}",
            "finish_reason": {"type": "stop"},
            "output_token_logprobs": logprobs,
            "completion_tokens": tokens,
            **({"prompt_tokens": len(ids)} if ids else {}),
        }
        body = {"text": word * tokens, "output_ids": [token_id] * tokens, "meta_info": meta}
        return await connection.answer(orjson.dumps(body))

    return handler


async def per_request(router: MeasuredRouter, bodies: list[dict[str, object]], target: str = "/generate") -> float:
    """CPU milliseconds a request, the median."""
    taken = []
    async with RawClient(router.port) as client:
        for body in bodies:
            before = router.cpu_ms
            answer = await client.request("POST", target, json=body, timeout_s=60)
            taken.append(router.cpu_ms - before)
            if answer.status != 200:
                raise SystemExit(answer.body.decode())
    return statistics.median(taken)


async def run(rounds: int, directory: str) -> None:
    from tokenizers import Tokenizer

    [token_id] = Tokenizer.from_file(f"{directory}/tokenizer.json").encode("x").ids
    settings = [f"plugins.hf_tokenizer.path={directory}"]

    def asked(texts: list[str]) -> list[dict[str, object]]:
        return [{"text": text, "return_logprob": True} for text in texts]

    async with ScriptedWorker() as worker:
        for tokens in (2_000, 20_000):
            worker.handler = answers(tokens, token_id, "x")  # type: ignore[assignment]  # a plain function will do
            new = [prompt_of(number) for number in range(rounds)]
            siblings = [prompt_of(-1)] * rounds
            async with measured_router(worker.url, ["least_inflight"]) as router:
                off = await per_request(router, asked(new))
            async with measured_router(worker.url, ["hf_tokenizer", "radix_cache"], settings) as router:
                on = await per_request(router, asked(new))
                turns = [text + "x" * tokens + prompt_of(number, 1_000) for number, text in enumerate(new)]
                grown = await per_request(router, asked(turns))
                again = await per_request(router, asked(siblings))
                texts = [{"text": text + "x" * tokens} for text in new]
                retrieved = await per_request(router, texts, "/retrieve_from_text")
            print(
                f"30,000 characters in, {tokens} tokens out, CPU of the router a request: off {off:.1f} ms, "
                f"new prompts {on:.1f} ms, their next turns {grown:.1f} ms, siblings {again:.1f} ms, "
                f"a retrieval {retrieved:.1f} ms"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--tokenizer", default=str(ASSETS), metavar="DIRECTORY")
    options = parser.parse_args()
    asyncio.run(run(options.rounds, options.tokenizer))


if __name__ == "__main__":
    main()
