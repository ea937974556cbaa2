"""Many rollouts over many weight updates, before fast workers that know what each of them should have said.

python tests/plugins/router_partial_rollout/many_rollouts.py --updates 50 --rollouts 256 --tokens 300
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pybase64

from router_core.reference_engine.tokenizer import ASSETS, Tokenizer
from router_core.testing import RawAnswer, ScriptedRequest, ScriptedWorker, exchange_once, send_json
from router_core.testing.connection import Connection
from router_core.testing.router import RunningRouter, running_router

LAYERS, TOP_K = 2, 2
TICK_S = 0.004
TOKENIZER = Tokenizer(ASSETS)


def plain_ids() -> list[int]:
    """Ids whose texts are words of letters: they may stand side by side and mean nothing to a parser."""
    found = ((token_id, TOKENIZER.decode([token_id])) for token_id in range(300, 900))
    return [token_id for token_id, text in found if text.strip().isalpha() and text.isascii()]


PLAIN = plain_ids()


class Sequenced:
    """What a model with this prefix says next: each id depends on all ids before it."""

    def __init__(self, prefix: Sequence[int]) -> None:
        self.state = 0
        for token_id in prefix:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        self.state = (self.state * 1000003 + token_id + 1) % (1 << 61)

    def next(self) -> int:
        token_id = PLAIN[self.state % len(PLAIN)]
        self.add(token_id)
        return token_id


def logprob(token_id: int) -> float:
    return -(token_id % 97 + 1) / 97


def experts_of(ids: Sequence[int]) -> np.ndarray:
    places = np.arange(LAYERS * TOP_K).reshape(1, LAYERS, TOP_K)
    return ((np.array(ids).reshape(-1, 1, 1) + places) % 8).astype("<i4")


@dataclass(eq=False)
class Generation:
    prompt: list[int]
    most: int
    abort_at: int | None
    said: Sequenced = field(init=False)
    ids: list[int] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    """Of each id."""
    finish: dict[str, Any] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.said = Sequenced(self.prompt)


class FastWorker:
    """``/generate`` and chat of SGLang, several tokens a tick for whatever runs. ``truth``: state -> version that made
    the token which left it."""

    def __init__(
        self,
        worker: ScriptedWorker,
        truth: dict[int, str],
        draw: random.Random,
        *,
        aborts: bool,
        changes: bool,
        tick_s: float,
    ) -> None:
        self.url = worker.url
        self.version = "0"
        self.truth = truth
        self.running: set[Generation] = set()
        self.is_paused = False
        self.aborted_tokens = 0
        self._draw = draw
        self._aborts, self._changes = aborts, changes
        self._tick_s = tick_s
        self._otherwise = worker.handler
        worker.health.paths.discard("/get_model_info")
        worker.handler = self.answer

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            if not self.is_paused:
                for generation in list(self.running):
                    self._advance(generation)

    def _advance(self, generation: Generation) -> None:
        for _ in range(self._draw.randrange(1, 5)):
            if generation.abort_at is not None and len(generation.ids) >= generation.abort_at:
                self._end(generation, {"type": "abort", "message": "Aborted"})
                if self._changes:
                    self.version = str(int(self.version) + 1)
                return
            generation.versions.append(self.version)
            generation.ids.append(generation.said.next())
            self.truth[generation.said.state] = f"{self.version}@{self.url}"
            if len(generation.ids) >= generation.most:
                self._end(generation, {"type": "length", "length": generation.most})
                return
        generation.changed.set()

    def _end(self, generation: Generation, finish: dict[str, Any]) -> None:
        generation.finish = finish
        self.running.discard(generation)
        generation.changed.set()

    def abort_all(self) -> None:
        for generation in list(self.running):
            self.aborted_tokens += len(generation.ids)
            self._end(generation, {"type": "abort", "message": "Aborted"})

    # ------------------------------------------------------------------------- its routes
    async def answer(self, request: ScriptedRequest, connection: Connection) -> bool:
        if request.path == "/pause_generation":
            self.is_paused = True
            self.abort_all()
        elif request.path == "/continue_generation":
            self.is_paused = False
        elif request.path == "/update_weight_version":
            self.version = request.json()["new_version"]
        elif request.path in ("/get_model_info", "/model_info"):
            parsers = {"tool_call_parser": None, "reasoning_parser": None}
            return await send_json(connection, {"is_generation": True, "weight_version": self.version, **parsers})
        elif request.path == "/detokenize":
            return await send_json(connection, {"text": TOKENIZER.decode(request.json()["tokens"])})
        elif request.path == "/generate":
            return await self._generate(request.json(), connection)
        elif request.path == "/v1/chat/completions":
            return await self._chat(request.json(), connection)
        else:
            return await self._otherwise(request, connection)
        return await send_json(connection, {"success": True})

    def _begin(self, prompt: list[int], most: int) -> Generation:
        abort_at = self._draw.randrange(0, 40) if self._aborts and self._draw.random() < 0.7 else None
        generation = Generation(prompt, most, abort_at)
        self.running.add(generation)
        return generation

    async def _growing(self, generation: Generation, connection: Connection) -> AsyncIterator[None]:
        try:
            while generation.finish is None:
                await generation.changed.wait()
                generation.changed.clear()
                if generation.finish is None:
                    yield
        finally:
            self.running.discard(generation)

    async def _generate(self, body: dict[str, Any], connection: Connection) -> bool:
        generation = self._begin(body["input_ids"], body["sampling_params"]["max_new_tokens"])
        if not body.get("stream"):
            async for _ in self._growing(generation, connection):
                pass
            return await send_json(connection, self._told(generation, body))
        await connection.begin(content_type="text/event-stream")
        async for _ in self._growing(generation, connection):
            if self._draw.random() < 0.2:
                await connection.write(event(self._told(generation, body)))
        await connection.write(event(self._told(generation, body)) + b"data: [DONE]\n\n")
        return await connection.end()

    def _told(self, generation: Generation, body: dict[str, Any]) -> dict[str, Any]:
        ids = list(generation.ids)
        meta = {
            "id": body.get("rid", "r"),
            "finish_reason": generation.finish,
            "prompt_tokens": len(generation.prompt),
            "completion_tokens": len(ids),
            "weight_version": self.version,
            "output_token_logprobs": [[logprob(token_id), token_id, None] for token_id in ids],
        }
        if generation.finish is not None:
            start = body.get("routed_experts_start_len") or 0
            meta["routed_experts"] = self._experts(generation, start)
            ends = [at for at in range(1, len(ids)) if generation.versions[at] != generation.versions[at - 1]]
            meta["weight_versions"] = [
                {"version": generation.versions[start], "start": start, "end": end}
                for start, end in itertools.pairwise([0, *ends, len(ids)])
                if end
            ]
        told = {"text": TOKENIZER.decode(ids), "output_ids": ids, "meta_info": meta}
        return {**told, "prompt_token_ids": generation.prompt} if body.get("return_prompt_token_ids") else told

    @staticmethod
    def _experts(generation: Generation, start: int) -> str:
        rows = experts_of([*generation.prompt, *generation.ids][start:-1])
        return pybase64.b64encode(rows.tobytes()).decode()

    async def _chat(self, body: dict[str, Any], connection: Connection) -> bool:
        generation = self._begin(body["input_ids"], body["max_tokens"])
        head = {"id": f"chat-{id(generation)}", "created": 1, "model": body["model"]}
        is_stream, seen = bool(body.get("stream")), 0
        if is_stream:
            await connection.begin(content_type="text/event-stream")
            await connection.write(chat_event(head, {"role": "assistant", "content": ""}))
        async for _ in self._growing(generation, connection):
            if is_stream:
                await connection.write(self._delta(head, generation, seen))
                seen = len(generation.ids)
        ids = generation.ids
        extension = {
            "input_ids": generation.prompt,
            "output_ids": [ids],
            "routed_experts": self._experts(generation, body.get("routed_experts_start_len") or 0) if ids else None,
        }
        usage = {"prompt_tokens": len(generation.prompt), "completion_tokens": len(ids)}
        usage["total_tokens"] = sum(usage.values())
        reason = (generation.finish or {}).get("type")
        if is_stream:
            await connection.write(self._delta(head, generation, seen) if len(ids) > seen else b"")
            await connection.write(chat_event(head, {}, finish=reason))
            await connection.write(
                event({**head, "object": "chat.completion.chunk", "choices": [], "sglext": extension})
            )
            await connection.write(event({**head, "choices": [], "usage": usage}) + b"data: [DONE]\n\n")
            return await connection.end()
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": TOKENIZER.decode(ids), "reasoning_content": None},
            "logprobs": {"content": [entry(token_id) for token_id in ids]},
            "finish_reason": reason,
        }
        metadata = {"weight_version": self.version, "weight_versions": []}
        answer = {**head, "object": "chat.completion", "choices": [choice], "usage": usage, "metadata": metadata}
        return await send_json(connection, {**answer, "sglext": extension})

    @staticmethod
    def _delta(head: dict[str, Any], generation: Generation, seen: int) -> bytes:
        ids = generation.ids
        text = TOKENIZER.decode(ids)[len(TOKENIZER.decode(ids[:seen])) :]
        logprobs = {"content": [entry(token_id) for token_id in ids[seen:]]}
        return chat_event(head, {"content": text}, logprobs=logprobs)


def entry(token_id: int) -> dict[str, Any]:
    return {"token": TOKENIZER.decode([token_id]), "logprob": logprob(token_id), "bytes": None, "top_logprobs": []}


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chat_event(
    head: dict[str, Any], delta: dict[str, Any], *, logprobs: Any = None, finish: str | None = None
) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    return event({**head, "object": "chat.completion.chunk", "choices": [choice]})


# ---------------------------------------------------------------------------- the rollouts
@dataclass
class Run:
    """``faults``: what a client saw that an uninterrupted run would not have shown it."""

    router: RunningRouter
    workers: list[FastWorker]
    truth: dict[int, str]
    faults: list[str] = field(default_factory=list)
    rollouts: Counter[str] = field(default_factory=Counter)
    versions: Counter[int] = field(default_factory=Counter)
    """Number of versions in one answer -> how many answers."""

    async def post(self, target: str, body: Any = None) -> RawAnswer:
        return await exchange_once(self.router.port, target=target, json=body, timeout_s=900)

    async def update(self, version: int) -> None:
        for target, body in (
            ("/routing/pause?wait=true", None),
            ("/pause_generation", {"mode": "abort"}),
            ("/update_weight_version", {"new_version": str(version), "abort_all_requests": False}),
            ("/continue_generation", {}),
            ("/routing/resume", None),
        ):
            answer = await self.post(target, body)
            if answer.status >= 300 or answer.status == 207:
                self.faults.append(f"{target}: {answer.status} {answer.body[:200]!r}")

    # ------------------------------------------------------------------------- single answers
    async def generate(self, number: int, tokens: int, *, stream: bool) -> None:
        prompt = [300 + (number * 7 + place * 13) % 500 for place in range(15)] + [300 + number // 500, number % 500]
        body = {
            "input_ids": prompt,
            "rid": f"r{number}",
            "sampling_params": {"max_new_tokens": tokens},
            "return_logprob": True,
            "return_routed_experts": True,
            "stream": stream,
        }
        answer = await self.post("/generate", body)
        name = f"rollout {number}"
        if answer.status != 200 or not answer.clean:
            self.faults.append(f"{name}: {answer.status} {answer.body[-200:]!r}")
            return
        told = json.loads(answer.body.split(b"\n\n")[-3][6:]) if stream else answer.json()
        meta = told["meta_info"]
        segments = meta.get("segments") or [
            {**span, "worker": answer.get("x-router-worker"), "weight_version": span["version"]}
            for span in meta["weight_versions"]
        ]
        made = [
            f"{segment['weight_version']}@{segment['worker']}"
            for segment in segments
            for _ in range(segment["start"], segment["end"])
        ]
        ids, logprobs = told["output_ids"], [item[0] for item in meta["output_token_logprobs"]]
        rows = np.frombuffer(pybase64.b64decode(meta["routed_experts"]), "<i4").reshape(-1, LAYERS, TOP_K)
        self.check(name, prompt, ids, logprobs, made, tokens)
        if not np.array_equal(rows, experts_of([*prompt, *ids][:-1])):
            self.faults.append(f"{name}: other experts, {len(rows)} rows")
        if told["text"] != TOKENIZER.decode(ids):
            self.faults.append(f"{name}: other text")
        if meta["finish_reason"] != {"type": "length", "length": tokens}:
            self.faults.append(f"{name}: ended by {meta['finish_reason']}")
        self.rollouts["stream" if stream else "whole"] += 1

    def check(
        self, name: str, prefix: Sequence[int], ids: list[int], logprobs: list[float], made: list[str], tokens: int
    ) -> None:
        said = Sequenced(prefix)
        due, truth = [], []
        for _ in range(tokens):
            due.append(said.next())
            truth.append(self.truth.get(said.state))
        if ids != due:
            self.faults.append(f"{name}: {len(ids)} ids, {sum(map(int.__ne__, ids, due))} of them others")
        if logprobs != [logprob(token_id) for token_id in ids]:
            self.faults.append(f"{name}: other logprobs")
        if "@" not in made[0]:
            truth = [str(each).partition("@")[0] for each in truth]
        if made != truth:
            self.faults.append(f"{name}: made by {Counter(made)}, in truth by {Counter(truth)}")
        self.versions[len(set(made))] += 1

    # ------------------------------------------------------------------------- captured chat
    async def session(self, number: int, tokens: int, turns: int, *, stream: bool) -> None:
        name = f"session {number}"
        await self.post("/sessions", {"session_id": f"s{number}"})
        messages = [{"role": "user", "content": f"task {number}"}]
        for turn in range(turns):
            body = {"model": "m", "messages": messages, "max_tokens": tokens, "stream": stream}
            answer = await self.post(f"/sessions/s{number}/v1/chat/completions", body)
            if answer.status != 200 or not answer.clean or answer.get("x-router-untrainable"):
                self.faults.append(f"{name}, turn {turn}: {answer.status} {answer.body[-300:]!r}")
                return
            content, reason = content_of(answer, stream=stream)
            if reason != "length":
                self.faults.append(f"{name}, turn {turn}: ended by {reason}")
                return
            messages = [
                *messages,
                {"role": "assistant", "content": content},
                {"role": "user", "content": f"more {turn}"},
            ]
        samples = (await self.post(f"/sessions/s{number}/samples", {})).json()["samples"]
        await exchange_once(self.router.port, "DELETE", f"/sessions/s{number}")
        self.rollouts["session"] += 1
        if len(samples) != 1 or not samples[0]["complete"]:
            self.faults.append(f"{name}: {len(samples)} rows, {[row['reasons'] for row in samples]}")
            return
        (row,) = samples
        made = {at: span["version"] for span in row["weight_versions"] for at in range(span["start"], span["end"])}
        if not np.array_equal(np.array(row["routed_experts"]), experts_of(row["tokens"][:-1])):
            self.faults.append(f"{name}: other experts")
        for turn, told in enumerate(row["turns"]):
            start, end = told["start"], told["end"]
            versions = [made[at] for at in range(start, end)]
            ids = row["tokens"][start:end]
            self.check(f"{name}, turn {turn}", row["tokens"][:start], ids, row["logprobs"][start:end], versions, tokens)
            if TOKENIZER.decode(ids).strip() != messages[2 * turn + 1]["content"].strip():
                self.faults.append(f"{name}, turn {turn}: other text")


def content_of(answer: RawAnswer, *, stream: bool) -> tuple[str, str | None]:
    if not stream:
        (choice,) = answer.json()["choices"]
        return choice["message"]["content"], choice["finish_reason"]
    events = [json.loads(line[6:]) for line in answer.body.split(b"\n\n") if line.startswith(b"data: {")]
    choices = [choice for told in events for choice in told.get("choices") or ()]
    reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, reasons[0] if len(reasons) == 1 else f"{reasons} {events[-1]}"


@asynccontextmanager
async def running(
    *, aborts: bool = False, changes: bool = False, seed: int = 1, tick_s: float = TICK_S
) -> AsyncIterator[Run]:
    """A router with what an asynchronous trainer enables, before two fast workers.

    ``aborts``: at random tokens; ``changes``: the weights under whatever else runs, with each such abort.
    """
    async with AsyncExitStack() as stack:
        truth: dict[int, str] = {}
        scripted = [await stack.enter_async_context(ScriptedWorker("sglang")) for _ in range(2)]
        draw = random.Random(seed)
        made = [FastWorker(worker, truth, draw, aborts=aborts, changes=changes, tick_s=tick_s) for worker in scripted]
        ticking = [asyncio.create_task(worker.run()) for worker in made]
        stack.callback(lambda: [task.cancel() for task in ticking])
        router = await stack.enter_async_context(
            running_router(
                [worker.url for worker in scripted],
                enabled=[
                    *("hf_tokenizer", "engine_control", "session_control", "tito", "partial_rollout"),
                    *("weight_version", "retry", "session_affinity", "least_inflight"),
                ],
                plugins={
                    "hf_tokenizer": {"path": str(ASSETS)},
                    "tito": {"routed_experts": True, "experts_shape": [LAYERS, TOP_K]},
                    "partial_rollout": {"when": "always" if aborts else "window", "max_dispatches": 1000},
                },
            )
        )
        run = Run(router, made, truth)
        await router.application.outside.find_tokenizer(None).ready()
        await run.update(0)
        yield run


async def over_updates(
    *,
    updates: int,
    rollouts: int,
    tokens: int,
    turns: int,
    chat_share: float,
    interval_s: float,
    tick_s: float = TICK_S,
) -> tuple[Run, str]:
    """Keeps ``rollouts`` in flight while the weights change ``updates`` times; the run, and how it went."""
    async with running(tick_s=tick_s) as run:
        is_stopped = False
        numbers = itertools.count(1)

        async def lane(place: int) -> None:
            while not is_stopped:
                number = next(numbers)
                stream = bool(number % 2)
                if place < rollouts * chat_share:
                    await run.session(number, max(8, tokens // 2), turns, stream=stream)
                else:
                    await run.generate(number, tokens, stream=stream)

        began = time.monotonic()
        lanes = [asyncio.create_task(lane(place)) for place in range(rollouts)]
        for version in range(1, updates + 1):
            await asyncio.sleep(interval_s)
            await run.update(version)
        is_stopped = True
        await asyncio.gather(*lanes)
        seconds = time.monotonic() - began
        page = run.router.application.outside.metrics()
        lines = [line for line in page.splitlines() if line.startswith("router_partial_rollout_")]
        told = [f"{seconds:.1f} s, {len(run.faults)} faults, answers {dict(run.rollouts)}"]
        told += [f"versions in one answer: {dict(sorted(run.versions.items()))}", *lines, *run.faults[:20]]
        return run, "\n".join(told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--chat-share", type=float, default=0.5)
    parser.add_argument("--interval-s", type=float, default=2.0)
    parser.add_argument("--tick-s", type=float, default=0.1, help="seconds in which a generation gets 1 to 4 tokens")
    _, told = asyncio.run(over_updates(**vars(parser.parse_args())))
    print(told)


if __name__ == "__main__":
    main()
