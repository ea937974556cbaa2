"""A rollout as slime writes it with text: generate from text, then ask the router for the exact tokens.

    python rollout.py http://127.0.0.1:8000

Nothing here knows a tokenizer. The training sample is what ``/retrieve_from_text`` gives back.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import aiohttp

PROMPT = "<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\n"
OBSERVATION = "<|im_start|>user\nAnother one.<|im_end|>\n<|im_start|>assistant\n"
SAMPLES, TURNS = 4, 2

SAMPLING = {"temperature": 1.0, "max_new_tokens": 16, "skip_special_tokens": False, "no_stop_trim": True}


async def post(client: aiohttp.ClientSession, path: str, body: dict[str, Any], session: str) -> dict[str, Any]:
    async with client.post(path, json=body, headers={"X-SMG-Routing-Key": session}) as answer:
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {await answer.text()}")
        return dict(await answer.json())


async def sample(client: aiohttp.ClientSession, number: int) -> dict[str, Any]:
    """One trajectory: text in, text out, and in the end tokens, loss mask and logprobs of equal length."""
    session, text = f"sample-{number}", PROMPT
    for turn in range(TURNS):
        if turn:
            text += "\n" + OBSERVATION
        answer = await post(client, "/generate", {"text": text, "sampling_params": SAMPLING}, session)
        text += answer["text"]
    told = await post(client, "/retrieve_from_text", {"text": text, "session_id": session, "strict": True}, session)
    if not len(told["tokens"]) == len(told["loss_mask"]) == len(told["rollout_logp"]):
        raise SystemExit(f"the lists differ in length: {told}")
    first = told["loss_mask"].index(1)
    return {
        "tokens": told["tokens"],
        "response_length": len(told["tokens"]) - first,
        "loss_mask": told["loss_mask"][first:],
        "rollout_log_probs": told["rollout_logp"][first:],
        "weight_versions": sorted({version for version in told["weight_versions"] if version is not None}),
    }


async def rollout(router: str) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession(router) as client:
        return await asyncio.gather(*(sample(client, number) for number in range(SAMPLES)))


def main() -> None:
    parser = argparse.ArgumentParser(description="A group of samples through the router's text interface.")
    parser.add_argument("router", help="URL of the router")
    for number, found in enumerate(asyncio.run(rollout(parser.parse_args().router))):
        sampled = sum(found["loss_mask"])
        mean = sum(found["rollout_log_probs"]) / sampled
        print(
            f"sample {number}: {len(found['tokens'])} tokens, {found['response_length']} of the response, "
            f"{sampled} sampled, mean logprob {mean:.3f}, weights {', '.join(found['weight_versions'])}"
        )


if __name__ == "__main__":
    main()
