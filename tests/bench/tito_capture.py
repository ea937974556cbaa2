"""What capture costs: python tests/bench/tito_capture.py [--turns 10 100 1000] [--tokens 320] [--http].

A tool-heavy session: each turn samples a quarter of its new tokens and gets the rest as a tool's result (with
``--characters N`` one of that length). Shown are the parts of a turn without HTTP (``prepare``: which stored prefix
does this request continue; ``render``: the new ids; ``commit``; CPU time), then what is kept, then what making samples
of it costs. ``--http`` also runs the sessions over HTTP, captured and passed through, against a scripted worker in the
same process, whose own work is in the times: with capture it reads and returns all ids of the prompt.

All of a turn's cost must grow with what is new in it. What grows with the whole history is what sends it whole: the
request's JSON is parsed and its messages are compared with the stored ones, one list with another; its ids are copied
and compared as memory, and written as JSON for the worker. Parsing and writing are shown apart.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

ROOT = Path(__file__).parents[2]
for folder in (ROOT / "plugins", ROOT / "tests" / "plugins" / "router_tito"):
    sys.path.insert(0, str(folder))

from router_tito.exporters import ExportOptions, TraceOutcome, encode, find_composer  # noqa: E402  # the path is set above
from router_tito.packed import ids_json  # noqa: E402
from router_tito.render import Renderer  # noqa: E402
from router_tito.trace import Trace  # noqa: E402
from tito_kit import Trained, answer, assistant, call, system, tool, user  # noqa: E402

WORDS = ["the", "weather", "in", "city", "is", "fine", "file", "list", "of", "and", "a", "return", "error", "line"]
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
LAST = 10
"""Turns at the end of a session over which its times are taken."""


class Script:
    """What the model and the tools say; the same for every run."""

    def __init__(self, tokenizer: Trained, tokens: int, characters: int | None) -> None:
        self.characters = characters
        self.tokenizer = tokenizer
        self.random = random.Random(1)
        self.sampled, self.result = tokens // 4, tokens - tokens // 4
        self.lengths = {word: len(tokenizer.encode(f" {word}")) for word in WORDS}

    def text(self, tokens: int) -> str:
        """A text of about so many tokens."""
        words = []
        while tokens > 0:
            words.append(self.random.choice(WORDS))
            tokens -= self.lengths[words[-1]]
        return " ".join(words)

    def result_text(self) -> str:
        """What a tool says."""
        if self.characters is None:
            return self.text(self.result)
        words = self.random.choices(WORDS, k=self.characters // 3)
        return " ".join(words)[: self.characters]


def messages_of(script: Script, turns: int) -> list[tuple[dict[str, Any], list[int], dict[str, Any]]]:
    """For each turn the assistant's message, its ids, and the tool's message."""
    made = []
    for number in range(turns):
        said = script.text(script.sampled)
        message = assistant(said, tool_calls=[call("bash", '{"command": "ls"}', f"c{number}")])
        ids = script.tokenizer.encode(said + "<|im_end|>")
        made.append((message, ids, tool(script.result_text(), f"c{number}")))
    return made


def play(script: list[Any], tokenizer: Trained, taken: dict[str, list[float]] | None = None) -> Trace:
    """The whole session; ``taken`` gets the microseconds of each part of each turn."""

    def timed(name: str, work: Callable[..., Any], *arguments: Any) -> Any:
        start = time.thread_time()
        result = work(*arguments)
        if taken is not None:
            taken.setdefault(name, []).append((time.thread_time() - start) * 1e6)
        return result

    renderer = Renderer(tokenizer)
    trace = Trace()
    messages: list[dict[str, Any]] = [system("You are a coder."), user("Mend it.")]
    for said, ids, result in script:
        body = orjson.dumps({"messages": messages, "tools": TOOLS})
        request = timed("parse", orjson.loads, body)
        turn = timed("prepare", trace.prepare_turn, request["messages"], request["tools"])
        prompt = timed("render", renderer.render_turn, turn)
        timed("ids", ids_json, prompt.ids)
        timed("commit", trace.commit, turn, answer(ids, said, prompt, finish_reason="tool_calls"))
        messages += [said, result]
    return trace


def run_library(turns: int, tokens: int, characters: int | None) -> Trace:
    tokenizer = Trained()
    script = messages_of(Script(tokenizer, tokens, characters), turns)
    taken: dict[str, list[float]] = {}
    trace = play(script, tokenizer, taken)
    (branch,) = trace.branches()
    medians = {name: statistics.median(times[-LAST:]) for name, times in taken.items()}
    total = sum(medians[name] for name in ("prepare", "render", "commit"))
    print(
        f"{turns:>6} turns {len(branch.token_ids):>8} tokens | us a turn (last {LAST}):"
        f" prepare {medians['prepare']:5.0f}  render {medians['render']:6.0f}  commit {medians['commit']:6.0f}"
        f"  = {total:6.0f}  (parsing its JSON {medians['parse']:5.0f}, writing its ids {medians['ids']:5.0f})"
    )
    texts = sum(len(orjson.dumps(node.message)) for node in trace.nodes)
    kept = memory_of(script, tokenizer)
    print(
        f"{'':>12} kept {kept / 2**20:6.2f} MiB (counted {trace.nbytes / 2**20:.2f}), of it messages' JSON"
        f" {texts / 2**20:.2f}; {(kept - texts) / len(branch.token_ids):.1f} bytes a token beside them"
    )
    return trace


def memory_of(script: list[Any], tokenizer: Trained) -> int:
    """Bytes that the trace of a session holds; in a run of its own, since tracing takes time."""
    gc.collect()
    tracemalloc.start()
    trace = play(script, tokenizer)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    del trace
    gc.collect()
    kept = held - tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return kept


def run_export(trace: Trace) -> None:
    outcome = TraceOutcome(trace, "t", 1.0)
    options = ExportOptions(strict=True)
    start = time.thread_time()
    packed = find_composer("neutral")(options).pack([outcome])
    rows_ms = (time.thread_time() - start) * 1e3
    parts = [f"rows {rows_ms:.1f} ms"]
    for encoding in ("json", "npz", "safetensors"):
        start = time.thread_time()
        body = encode(packed, encoding)
        parts.append(f"{encoding} {(time.thread_time() - start) * 1e3:.1f} ms, {len(body) / 2**20:.2f} MiB")
    print(f"{'':>12} export: {'; '.join(parts)}")


async def run_http(turns: int, tokens: int, characters: int | None) -> None:
    from capture_kit import capturing

    from router_core.testing import RawClient, ScriptedWorker

    tokenizer = Trained()
    script = messages_of(Script(tokenizer, tokens, characters), turns)
    async with (
        ScriptedWorker() as worker,
        capturing(worker, tokenizer=tokenizer) as made,
        RawClient(made.port) as client,
    ):
        await made.open()
        for name, path in (("captured", "/sessions/s/v1/chat/completions"), ("passed", "/v1/chat/completions")):
            messages: list[dict[str, Any]] = [system("You are a coder."), user("Mend it.")]
            taken = []
            for said, ids, result in script:
                worker.say(said["content"], ids=ids)
                start = time.perf_counter()
                reply = await client.request("POST", path, json={"model": "m", "messages": messages})
                taken.append((time.perf_counter() - start) * 1e3)
                assert reply.status == 200, reply.body
                answered = reply.json()["choices"][0]["message"]
                messages += [{key: value for key, value in answered.items() if value is not None}, result]
                worker.requests.clear()
            print(f"{turns:>6} turns {name:>9}: a turn takes {statistics.median(taken[-LAST:]):7.2f} ms (last {LAST})")
        print(f"{'':>12} branches: {len(made.branches())}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--tokens", type=int, default=320, help="new tokens a turn")
    parser.add_argument("--characters", type=int, help="length of a tool's result")
    parser.add_argument("--http", action="store_true")
    options = parser.parse_args()
    for turns in options.turns:
        run_export(run_library(turns, options.tokens, options.characters))
    if options.http:
        for turns in options.turns:
            asyncio.run(run_http(turns, options.tokens, options.characters))


if __name__ == "__main__":
    main()
