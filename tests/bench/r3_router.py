"""What routed experts cost in the router: python tests/bench/r3_router.py [--mebibytes 64] [--rounds 5].

First one large answer of SGLang's form, with the plugin off and on: CPU time of the router's process, its peak memory
above the state before, and whether the bytes are equal. Then a session of 32 turns that grows to 32,000 tokens on a
model of 48 layers and 8 of 128 experts: how many rows the worker sent. The worker and the client are in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import io
import statistics

import numpy as np
import orjson
from measured_router import MeasuredRouter, measured_router

from router_core.testing import RawClient, ScriptedRequest, ScriptedWorker, build_request, peak_memory_growth
from router_core.testing.connection import Connection

LAYERS, TOP_K, EXPERTS = 48, 8, 128
LAYOUT = (f"plugins.routed_experts.layers={LAYERS}", f"plugins.routed_experts.top_k={TOP_K}")
PIECE_BYTES = 1 << 18


def rows_of(start: int, stop: int) -> np.ndarray:
    """int32 [stop - start, layers, top_k], the same for a row whenever it is asked for."""
    first = (np.arange(start, stop)[:, None] * 7 + np.arange(LAYERS) * 3) % (EXPERTS - TOP_K)
    return (first[:, :, None] + np.arange(1, TOP_K + 1)).astype("<i4")


def answer_of(prompt: int, output: int, start: int, *, rid: str) -> bytes:
    meta = {"id": rid, "finish_reason": {"type": "length"}, "prompt_tokens": prompt, "completion_tokens": output}
    meta["routed_experts"] = base64.b64encode(rows_of(start, prompt + output - 1).tobytes()).decode()
    return orjson.dumps({"text": "word " * output, "output_ids": list(range(output)), "meta_info": meta})


async def read(client: RawClient, body: dict[str, object], headers: dict[str, str] | None = None) -> tuple[int, str]:
    """Size and digest of an answer whose pieces are thrown away."""
    await client.send(build_request("POST", "/generate", headers or {}, json=body, host="bench"))
    answer = await client.read_head()
    digest, size = hashlib.blake2b(), 0

    def take(piece: bytes) -> None:
        nonlocal size
        size += len(piece)
        digest.update(piece)

    await client.read_body(answer, on_chunk=take, keep=False, timeout_s=60)
    return size, digest.hexdigest()


async def large_answer(router: MeasuredRouter, rounds: int, expected: str, body: dict[str, object]) -> None:
    cpu, memory = [], []
    async with RawClient(router.port) as client:
        for _ in range(rounds):
            before = router.cpu_ms
            with peak_memory_growth(router.pid) as growth:
                _, digest = await read(client, body)
            cpu.append(router.cpu_ms - before)
            memory.append(growth.peak_mib)
            if digest != expected:
                raise SystemExit("the answer's bytes are not the worker's")
    print(
        f"  CPU {statistics.median(cpu):6.1f} ms (best {min(cpu):.1f}), peak memory added: first "
        f"{memory[0]:.1f} MiB, then {statistics.median(memory[1:]):.1f} MiB"
    )


async def session(router: MeasuredRouter, worker: ScriptedWorker, turns: int, tokens: int) -> None:
    sent = 0
    sizes = []

    async def handler(request: ScriptedRequest, connection: Connection) -> bool:
        nonlocal sent
        asked = request.json()
        prompt, start = len(asked["input_ids"]), asked.get("routed_experts_start_len", 0)
        body = answer_of(prompt, tokens // turns // 2, start, rid=asked["rid"])
        sent += prompt + tokens // turns // 2 - 1 - start
        sizes.append(len(body))
        return await connection.answer(body)

    worker.handler = handler
    before, ids = router.cpu_ms, []
    output = tokens // turns // 2
    async with RawClient(router.port) as client:
        for turn in range(turns):
            ids += [turn] * output
            await read(client, {"input_ids": ids, "rid": f"turn-{turn}"}, {"x-session-id": "bench"})
            ids += range(output)
        kept = await client.request("GET", f"/routed_experts/turn-{turns - 1}", timeout_s=60)
        metrics = await client.request("GET", "/readiness")
    rows = np.load(io.BytesIO(kept.body))
    if not (metrics.status == 200 and (rows == rows_of(0, len(ids) - 1)).all()):
        raise SystemExit("the rows that are kept are not the worker's")
    full = sum((turn + 1) * 2 * output - 1 for turn in range(turns))
    print(f"{turns} turns to {len(ids)} tokens: {sent} rows sent, {len(ids) - 1} kept (in full each turn: {full})")
    print(
        f"  {sum(sizes) / 2**20:.0f} MiB from the worker in all, largest answer {max(sizes) / 2**20:.1f} MiB, "
        f"CPU {router.cpu_ms - before:.0f} ms, kept file {len(kept.body) / 2**20:.1f} MiB"
    )


async def run(mebibytes: int, rounds: int) -> None:
    rows = mebibytes * 2**20 * 3 // 4 // (LAYERS * TOP_K * 4)
    body = answer_of(rows - 99, 100, 0, rid="large")
    asked = {"input_ids": [1] * (rows - 99), "return_routed_experts": True}
    expected = hashlib.blake2b(body).hexdigest()
    async with ScriptedWorker() as worker:

        async def handler(request: ScriptedRequest, connection: Connection) -> bool:
            return await connection.answer(body)

        worker.handler = handler
        for name, enabled in (("off", ["least_inflight"]), ("on", ["routed_experts", "least_inflight"])):
            async with measured_router(worker.url, enabled, LAYOUT if name == "on" else ()) as router:
                print(f"{len(body) / 2**20:.0f} MiB, {rows} rows, plugin {name}:")
                await large_answer(router, rounds, expected, asked)
        async with measured_router(worker.url, ["routed_experts", "least_inflight"], LAYOUT) as router:
            await session(router, worker, 32, 32_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    asyncio.run(run(options.mebibytes, options.rounds))


if __name__ == "__main__":
    main()
