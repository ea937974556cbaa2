"""What storing and matching costs: python tests/bench/radix_match.py [--trajectories 10000] [--characters 30000].

Two shapes: ``unique`` (one short system prompt for all, then nothing in common) and ``groups`` (64 siblings share a
prompt of two thirds of the text). A token is four characters; the last third is sampled. Memory is the growth of the
process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import sys
import time
from array import array
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "plugins"))

from router_radix_cache.tokens import PackedTokens
from router_radix_cache.tree import RadixTree

LETTERS = "abcdefghijklmnopqrstuvwxyz      "


def text_of(source: random.Random, characters: int) -> str:
    return source.randbytes(characters).translate(TABLE).decode()


TABLE = bytes(ord(LETTERS[value % 32]) for value in range(256))


def tokens_of(text: str, sampled_from: int) -> PackedTokens:
    """One token for four characters; its id is made of them."""
    tokens = PackedTokens()
    ids = array("i", text.encode())  # bytes are taken as packed machine values
    context = sampled_from // 4
    tokens.add_context(ids[:context], range(4, 4 * context + 1, 4))
    sampled = len(ids) - context
    logprobs = [-0.001 * (number % 1000) for number in range(sampled)]
    tokens.add_sampled(ids[context:], range(4, 4 * sampled + 1, 4), logprobs, "v1")
    return tokens


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def timed(calls: int, call) -> list[float]:
    taken = []
    for number in range(calls):
        start = time.perf_counter()
        call(number)
        taken.append((time.perf_counter() - start) * 1e6)
    return sorted(taken)


def show(name: str, taken: list[float]) -> None:
    print(f"  {name:<46} p50 {statistics.median(taken):8.1f} us   p99 {taken[int(len(taken) * 0.99)]:8.1f} us")


def run(shape: str, trajectories: int, characters: int) -> None:
    source = random.Random(1)
    prompt = 1000 if shape == "unique" else characters * 2 // 3 // 4 * 4
    siblings = trajectories if shape == "unique" else 64
    tree = RadixTree()
    texts: list[str] = []
    inserts = []
    before = resident_bytes()
    unique_text = unique_tokens = sampled_tokens = 0
    start_text = ""
    for number in range(trajectories):
        if number % siblings == 0:
            start_text = text_of(source, prompt)
            unique_text += prompt
            unique_tokens += prompt // 4
        text = start_text + text_of(source, characters - prompt)
        unique_text += characters - prompt
        unique_tokens += (characters - prompt) // 4
        sampled_from = characters * 2 // 3 // 4 * 4
        sampled_tokens += (characters - sampled_from) // 4
        tokens = tokens_of(text, sampled_from)
        start = time.perf_counter()
        tree.insert(text, tokens, rid=f"rid-{number:06}", session_id=f"session-{number:06}")
        inserts.append((time.perf_counter() - start) * 1e6)
        if number % 10 == 0:
            texts.append(text)
    grown = resident_bytes() - before - sum(map(len, texts))
    print(f"{shape}: {trajectories} trajectories of {characters} characters")
    show("insert", sorted(inserts))
    picks = [source.randrange(len(texts)) for _ in range(2000)]
    show("match, the whole text", timed(2000, lambda n: tree.match(texts[picks[n]])))
    longer = [texts[pick] + "\nuser: and now something new\n" for pick in picks]
    show("match, the text and a new tail", timed(2000, lambda n: tree.match(longer[n])))
    cut = [texts[pick][: source.randrange(characters)] for pick in picks]
    show("match, the text cut somewhere", timed(2000, lambda n: tree.match(cut[n])))
    other = [texts[pick][:prompt] + text_of(source, characters - prompt) for pick in picks[:500]]
    show("match, a known prompt and an unknown rest", timed(500, lambda n: tree.match(other[n])))
    sessions = [f"session-{10 * pick:06}" for pick in picks]
    show("match within a session", timed(2000, lambda n: tree.match(longer[n], session_id=sessions[n])))
    show("its tokens to be kept, packed", timed(500, lambda n: tree.match(longer[n]).reusable().packed()))
    show("all lists of an answer", timed(200, lambda n: lists(tree.match(texts[picks[n]]))))
    packed = 8 * unique_tokens + 8 * sampled_tokens
    spare = (grown - unique_text - packed) / trajectories
    print(f"  memory: {grown / 2**20:.0f} MiB grown, {tree.byte_count / 2**20:.0f} MiB counted by the tree;")
    print(f"    text {unique_text / 2**20:.0f} MiB, packed tokens {packed / 2**20:.0f} MiB,")
    print(f"    {spare:.0f} bytes a trajectory beside them")
    limit = 1.1 * unique_text + 16 * unique_tokens
    print(f"    {grown / limit:.2f} of (unique text x 1.1 + 16 bytes a token)")


def lists(match) -> tuple:
    return match.token_ids, match.loss_mask, match.logprobs, match.weight_versions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument("--characters", type=int, default=30_000)
    parser.add_argument("--shape", choices=["unique", "groups"], action="append")
    options = parser.parse_args()
    for shape in options.shape or [
        "unique",
        "groups",
    ]:  # a process each: memory that was freed before would hide growth
        work = multiprocessing.get_context("spawn").Process(
            target=run, args=(shape, options.trajectories, options.characters)
        )
        work.start()
        work.join()


if __name__ == "__main__":
    main()
