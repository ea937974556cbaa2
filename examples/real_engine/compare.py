"""Puts real SGLang or vLLM servers behind the router and compares what comes through with direct answers.

    python compare.py --kind sglang --model NAME --worker http://127.0.0.1:30000 --worker http://127.0.0.1:30001

Every case is asked of the router until each worker has served it, and of that worker directly, at temperature 0.
Exit status 1 when an answer differs.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import OpenAI

PROMPT = "A router stands between rollouts and workers. It"
MESSAGES = [{"role": "user", "content": "Count from one to ten."}]
MAX_TOKENS = 24
START_S = 30
REQUEST_S = 300
LOGPROB_TOLERANCE = 1e-3
"""Logprobs (nats) may differ a little: a cached prompt is not computed in the same batches as a new one."""


@dataclass
class Answer:
    """What must be the same whichever way it came, and which worker it came from."""

    worker: str | None
    exact: dict[str, Any]
    logprobs: list[float]
    told: str

    def difference(self, other: Answer) -> str | None:
        for key, value in self.exact.items():
            if other.exact[key] != value:
                return f"{key}: {value!r} and {other.exact[key]!r}"
        if len(self.logprobs) != len(other.logprobs):
            return f"{len(self.logprobs)} and {len(other.logprobs)} logprobs"
        apart = max((abs(a - b) for a, b in zip(self.logprobs, other.logprobs, strict=True)), default=0.0)
        return f"logprobs are up to {apart} apart" if apart > LOGPROB_TOLERANCE else None


Ask = Callable[[str], Answer]
"""Asks one URL, the router's or a worker's."""

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextlib.contextmanager
def posted(url: str, body: dict[str, Any]) -> Iterator[Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with OPENER.open(request, timeout=REQUEST_S) as answer:
        yield answer


def events(answer: Any) -> Iterator[dict[str, Any]]:
    """The JSON of each server-sent event, up to ``[DONE]``, which must come."""
    for line in answer:
        if line.startswith(b"data: [DONE]"):
            return
        if line.startswith(b"data: "):
            yield json.loads(line[len(b"data: ") :])
    raise SystemExit("the stream ended without [DONE]")


# ---------------------------------------------------------------------------------------------------------- raw calls
def generate(ids: list[int], *, stream: bool) -> Ask:
    """SGLang's ``POST /generate``: ids in; ids, logprobs and routed experts out. Its events hold all so far."""
    body = {
        "input_ids": ids,
        "sampling_params": {"temperature": 0, "max_new_tokens": MAX_TOKENS},
        "return_logprob": True,
        "return_routed_experts": True,
        "stream": stream,
    }

    def ask(url: str) -> Answer:
        with posted(f"{url}/generate", body) as answer:
            told = list(events(answer)) if stream else [json.load(answer)]
            worker = answer.headers["x-router-worker"]
        info, output_ids = told[-1]["meta_info"], told[-1]["output_ids"]
        experts = info.get("routed_experts")
        exact = {"output_ids": output_ids, "text": told[-1]["text"], "routed_experts": experts}
        seen = _shape_of(experts, rows=len(ids) + len(output_ids) - 1) if experts else "no routed experts"
        more = f"{len(told)} events, {seen}" if stream else seen
        return Answer(worker, exact, [entry[0] for entry in info["output_token_logprobs"]], more)

    return ask


def _shape_of(experts: str, *, rows: int) -> str:
    """SGLang's routed experts are base64 of int32[prompt + output - 1, layers * top_k]."""
    row_bytes, rest = divmod(len(base64.b64decode(experts)), rows)
    if rest or row_bytes % 4:
        raise SystemExit(f"the routed experts are not {rows} rows of int32")
    return f"experts {rows}x{row_bytes // 4}"


def completions(model: str, ids: list[int], *, stream: bool) -> Ask:
    """vLLM's ``POST /v1/completions`` with ids for a prompt; each event holds the ids of its own tokens."""
    body = {
        "model": model,
        "prompt": ids,
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "logprobs": 0,
        "return_token_ids": True,
        "stream": stream,
    }

    def ask(url: str) -> Answer:
        with posted(f"{url}/v1/completions", body) as answer:
            told = list(events(answer)) if stream else [json.load(answer)]
            worker = answer.headers["x-router-worker"]
        choices = [part["choices"][0] for part in told if part["choices"]]
        exact = {
            "token_ids": [one for choice in choices for one in choice["token_ids"]],
            "text": "".join(choice["text"] for choice in choices),
            "routed_experts": choices[-1].get("routed_experts"),  # a .npy in base64; streams have none
        }
        logprobs = [one for choice in choices if choice["logprobs"] for one in choice["logprobs"]["token_logprobs"]]
        seen = f"{len(told)} events" if stream else "experts" if exact["routed_experts"] else ""
        return Answer(worker, exact, logprobs, seen)

    return ask


# -------------------------------------------------------------------------------------------------------- openai SDK
def chat(model: str, *, stream: bool) -> Ask:
    """``chat.completions.create`` of the openai SDK, with nothing but another base URL."""
    wanted: dict[str, Any] = {"model": model, "messages": MESSAGES, "temperature": 0, "max_tokens": MAX_TOKENS}

    def ask(url: str) -> Answer:
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=REQUEST_S) as client:
            raw = client.chat.completions.with_raw_response.create(**wanted, logprobs=True, stream=stream)
            parts = list(raw.parse()) if stream else [raw.parse()]
            worker = raw.headers.get("x-router-worker")
        choices = [part.choices[0] for part in parts if part.choices]
        said = [choice.delta if stream else choice.message for choice in choices]
        exact = {
            "content": "".join(part.content or "" for part in said),
            "finish_reason": choices[-1].finish_reason,
        }
        logprobs = [one.logprob for c in choices if c.logprobs for one in c.logprobs.content or []]
        return Answer(worker, exact, logprobs, f"{len(parts)} chunks" if stream else "")

    return ask


# --------------------------------------------------------------------------------------------------------------- main
def cases(kind: str, model: str, ids: list[int]) -> dict[str, Ask]:
    raw: dict[str, Ask] = {}
    for stream in (False, True):
        how = ", streamed" if stream else ""
        if kind == "sglang":
            raw[f"/generate{how}"] = generate(ids, stream=stream)
        else:
            raw[f"/v1/completions{how}"] = completions(model, ids, stream=stream)
        raw[f"openai SDK, chat{how}"] = chat(model, stream=stream)
    return raw


@contextlib.contextmanager
def running_router(workers: list[str]) -> Iterator[str]:
    """The URL of ``router-core serve`` in front of the workers."""
    with tempfile.TemporaryDirectory() as directory:
        ready_file = Path(directory, "ready.json")
        command = [sys.executable, "-P", "-m", "router_core", "serve", "--port", "0", "--ready-file", str(ready_file)]
        command += [f"--worker={url}" for url in workers]
        with subprocess.Popen(command) as process:
            try:
                deadline = time.monotonic() + START_S
                while not ready_file.exists():
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise SystemExit("the router did not start")
                    time.sleep(0.05)
                yield json.loads(ready_file.read_text(encoding="utf-8"))["url"]
            finally:
                process.terminate()


def compare(name: str, ask: Ask, router: str, workers: list[str]) -> bool:
    """Asks the router until each worker has served the case, and each worker directly; prints a line for each."""
    waiting, same = set(workers), True
    for _ in range(4 * len(workers)):
        routed = ask(router)
        if routed.worker is None or routed.worker not in waiting:
            continue
        waiting.discard(routed.worker)
        difference = routed.difference(ask(routed.worker))
        same = same and difference is None
        print(f"{name:<28} {routed.worker:<24} {difference or 'equal':<8} {routed.told}", flush=True)
    for worker in sorted(waiting):
        print(f"{name:<28} {worker:<24} was never chosen")
    return same and not waiting


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare answers through the router with direct ones.")
    parser.add_argument("--kind", choices=("sglang", "vllm"), required=True)
    parser.add_argument("--model", required=True, help="the name the servers serve it under")
    parser.add_argument("--worker", action="append", required=True, metavar="URL", help="give it once for each server")
    options = parser.parse_args()
    workers = [url.rstrip("/") for url in options.worker]
    with posted(f"{workers[0]}/tokenize", {"model": options.model, "prompt": PROMPT}) as answer:
        ids = json.load(answer)["tokens"]
    with running_router(workers) as router:
        print(f"{'case':<28} {'served by':<24} {'answer':<8} what came")
        results = [compare(name, ask, router, workers) for name, ask in cases(options.kind, options.model, ids).items()]
    print("all equal" if all(results) else "NOT EQUAL")
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
