"""What routed experts in a large answer cost: python tests/bench/r3_scan.py [--mebibytes 64] [--chunk 65536].

An answer of the given size is read in chunks as they come from a worker. Times are CPU milliseconds, the best of five.
"""

from __future__ import annotations

import argparse
import base64
import io
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson

sys.path.insert(0, str(Path(__file__).parents[2] / "plugins"))

from router_routed_experts.codecs import decode_found, open_decoder
from router_routed_experts.places import places_of
from router_routed_experts.rows import Layout, RowTable, judge

from router_core import ValueScanner

LAYERS, TOP_K, EXPERTS = 48, 8, 128


class Nothing:
    """A sink that takes nothing in."""

    def write(self, piece: memoryview) -> None:
        pass


def answer_of(mebibytes: int, dialect: str) -> tuple[bytes, int]:
    """An answer with that much base64, and its rows."""
    itemsize = 4 if dialect == "sglang" else 1
    rows = mebibytes * 2**20 * 3 // 4 // (LAYERS * TOP_K * itemsize)
    source = np.random.default_rng(1)
    first = source.integers(0, EXPERTS - TOP_K, (rows, LAYERS, 1), dtype=np.int32)
    experts = first + np.arange(TOP_K, dtype=np.int32)
    if dialect == "sglang":
        raw = experts.astype("<i4").tobytes()
    else:
        stream = io.BytesIO()
        np.save(stream, experts.astype(np.uint8))
        raw = stream.getvalue()
    text = base64.b64encode(raw).decode()
    tokens = list(range(rows))
    if dialect == "sglang":
        answer: dict[str, object] = {
            "text": "word " * rows,
            "output_ids": tokens,
            "meta_info": {"routed_experts": text},
        }
    else:
        answer = {"choices": [{"index": 0, "text": "word " * rows, "token_ids": tokens, "routed_experts": text}]}
    return orjson.dumps(answer), rows


def best_ms(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(5):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken) * 1000


def peak_mib(work: Callable[[], object]) -> tuple[float, float]:
    """The most memory in use meanwhile, and what stays with the result, in MiB."""
    tracemalloc.start()
    kept = work()
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return peak / 2**20, now / 2**20


def run(dialect: str, mebibytes: int, size: int) -> None:
    body, rows = answer_of(mebibytes, dialect)
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    raw_dtype = "int32" if dialect == "sglang" else None
    layout = Layout(LAYERS, TOP_K, EXPERTS)

    def scan(sink: Callable[[bool], object]) -> ValueScanner:
        scanner = ValueScanner(b"routed_experts", open_sink=sink)
        for chunk in chunks:
            scanner.feed(chunk)
        return scanner

    def strip() -> None:
        scanner = ValueScanner(b"routed_experts", open_sink=lambda is_string: Nothing(), replacement=b"null")
        for chunk in chunks:
            scanner.feed(chunk)
            scanner.drain()

    def keep() -> RowTable:
        scanner = scan(open_decoder(raw_dtype))
        (place,) = places_of(orjson.loads(scanner.rest_bytes()))
        decoded = decode_found(scanner.values[place.value_index or 0], raw_dtype, place.dtype)
        verdict = judge(decoded, prompt_tokens=rows, output_tokens=1, layout=layout)
        if verdict.block is None:
            raise SystemExit(f"{verdict.reason}: {verdict.detail}")
        return RowTable().extended(verdict.block)

    table = keep()
    print(f"{dialect}: {len(body) / 2**20:.0f} MiB in chunks of {size}, {table.row_count} rows of {LAYERS} x {TOP_K}")
    print(f"  scan                                {best_ms(lambda: scan(lambda is_string: Nothing())):8.1f} ms")
    print(f"  scan, value replaced by null        {best_ms(strip):8.1f} ms")
    print(f"  scan and decode                     {best_ms(lambda: scan(open_decoder(raw_dtype))):8.1f} ms")
    print(f"  scan, decode, parse the rest, check {best_ms(keep):8.1f} ms")
    print(f"  rows out as .npy                    {best_ms(table.to_npy):8.1f} ms")
    print(f"  for comparison: join and orjson     {best_ms(lambda: orjson.loads(b''.join(chunks))):8.1f} ms")
    peak, kept = peak_mib(keep)
    print(f"  memory: {peak:.1f} MiB at most, {kept:.1f} MiB kept")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=65536)
    options = parser.parse_args()
    for dialect in ("sglang", "vllm"):
        run(dialect, options.mebibytes, options.chunk)


if __name__ == "__main__":
    main()
