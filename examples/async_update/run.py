"""Asynchronous training without lost work: rollouts run on while the weights under them change.

python run.py                                   two reference engines, started here
python run.py --worker http://127.0.0.1:30000   real SGLang servers, started by you
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

HERE = Path(__file__).parent


# ------------------------------------------------------------------------------------------- the router and its workers
@asynccontextmanager
async def running(*command: str) -> AsyncIterator[str]:
    """A router-core process with a ready file; its url."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.json"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "router_core", *command, "--ready-file", str(ready)
        )
        try:
            while not ready.exists():
                if process.returncode is not None:
                    raise SystemExit(f"router-core {command[0]} ended with status {process.returncode}")
                await asyncio.sleep(0.05)
            yield json.loads(ready.read_text())["url"]
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


@asynccontextmanager
async def router_before(workers: list[str]) -> AsyncIterator[str]:
    async with AsyncExitStack() as stack:
        if not workers:
            engine = ("engine", "--port", "0", "--weight-version", "0", "--step-delay-s", "0.01")
            workers = [await stack.enter_async_context(running(*engine)) for _ in range(2)]
        given = [part for worker in workers for part in ("--worker", worker)]
        config = str(HERE / "plugins.toml")
        serve = ("serve", "--config", config, "--port", "0", *given, "--set", "router.log_level=error")
        yield await stack.enter_async_context(running(*serve))


# ----------------------------------------------------------------------------------------------------------- rollouts
@dataclass
class Rollouts:
    """Keeps ``width`` rollouts in flight until it is stopped; each becomes one row."""

    http: aiohttp.ClientSession
    url: str
    width: int
    tokens: int
    vocabulary: int
    experts: bool
    rows: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    is_stopped: bool = False

    async def run(self) -> None:
        numbers = itertools.count(1)
        await asyncio.gather(*(self._lane(numbers) for _ in range(self.width)))

    async def _lane(self, numbers: Any) -> None:
        while not self.is_stopped:
            await self._rollout(next(numbers))

    async def _rollout(self, number: int) -> None:
        prompt = [100 + (number * 7 + place * 13) % (self.vocabulary - 100) for place in range(16)]
        ask = {
            "input_ids": prompt,
            "sampling_params": {"max_new_tokens": self.tokens, "temperature": 1.0, "ignore_eos": True},
            "return_logprob": True,
            "return_routed_experts": self.experts,
        }
        async with self.http.post(f"{self.url}/generate", json=ask) as answer:
            text = await answer.text()
        if answer.status != 200:
            self.errors.append(f"rollout {number}: {answer.status} {text[:200]}")
            return
        row = to_row(number, prompt, json.loads(text))
        faults = faults_of(row, self.tokens)
        self.errors += [f"rollout {number}: {fault}" for fault in faults]
        self.rows.append(row)


def to_row(number: int, prompt: list[int], answer: dict[str, Any]) -> dict[str, Any]:
    """What a trainer needs: of every token the mask, the logprob and the version of the weights that made it."""
    meta, ids = answer["meta_info"], answer["output_ids"]
    spans = meta.get("weight_versions") or [{"version": meta["weight_version"], "start": 0, "end": len(ids)}]
    if "segments" in meta:
        spans = [{**segment, "version": segment["weight_version"]} for segment in meta["segments"]]
    versions = [span["version"] for span in spans for _ in range(span["start"], span["end"])]
    return {
        "id": number,
        "tokens": [*prompt, *ids],
        "loss_mask": [0] * len(prompt) + [1] * len(ids),
        "logprobs": [0.0] * len(prompt) + [entry[0] for entry in meta["output_token_logprobs"]],
        "weight_versions": [None] * len(prompt) + versions,
        "routed_experts": meta.get("routed_experts"),
        "segments": meta.get("segments"),
        "finish_reason": meta["finish_reason"]["type"],
    }


def faults_of(row: dict[str, Any], tokens: int) -> list[str]:
    """What is wrong with a row; versions must be there for each token and may only rise."""
    faults = []
    lengths = {key: len(row[key]) for key in ("tokens", "loss_mask", "logprobs", "weight_versions")}
    if len(set(lengths.values())) > 1:
        faults.append(f"lengths differ: {lengths}")
    if row["finish_reason"] != "length" or sum(row["loss_mask"]) != tokens:
        faults.append(f"{sum(row['loss_mask'])} tokens, ended by {row['finish_reason']}")
    versions = [version for version in row["weight_versions"] if version is not None]
    if any(int(one) > int(two) for one, two in itertools.pairwise(versions)):
        faults.append("a version falls")
    return faults


# ---------------------------------------------------------------------------------------------------- the coordinator
@dataclass
class Coordinator:
    """Pauses, has the workers take new weights, and lets them go on."""

    http: aiohttp.ClientSession
    url: str
    mode: str
    disk: str | None

    async def call(self, target: str, body: Any = None) -> Any:
        async with self.http.post(self.url + target, json=body) as answer:
            told = await answer.json(content_type=None)
            if answer.status >= 300 or answer.status == 207:
                raise SystemExit(f"{target}: {answer.status} {told}")
            return told

    async def update(self, version: int) -> dict[str, Any]:
        """One update; what the router said while it was paused."""
        await self.call("/routing/pause?wait=true")
        await self.call("/pause_generation", {"mode": self.mode})
        if self.disk is None:
            await self.call("/update_weight_version", {"new_version": str(version), "abort_all_requests": False})
        else:
            await self.call("/update_weights_from_disk", {"model_path": self.disk, "weight_version": str(version)})
        async with self.http.get(f"{self.url}/routing/status") as answer:
            status: dict[str, Any] = await answer.json()
        await self.call("/continue_generation", {})
        await self.call("/routing/resume")
        return status


async def run(options: argparse.Namespace) -> int:
    timeout = aiohttp.ClientTimeout(total=None)
    async with router_before(options.worker) as url, aiohttp.ClientSession(timeout=timeout) as http:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as many:
            coordinator = Coordinator(http, url, options.mode, options.update_from_disk)
            await coordinator.update(0)
            rollouts = Rollouts(many, url, options.rollouts, options.tokens, options.vocabulary, options.experts)
            working = asyncio.create_task(rollouts.run())
            began = time.monotonic()
            for version in range(1, options.updates + 1):
                await asyncio.sleep(options.interval_s)
                status = await coordinator.update(version)
                held, running_ = status["held"]["total"], status["inflight"]
                print(f"version {version}: {held} held, {running_} at workers during the update", flush=True)
            rollouts.is_stopped = True
            await working
        seconds = time.monotonic() - began
        async with http.get(f"{url}/metrics") as answer:
            page = await answer.text()
    report(rollouts, seconds, page, options.output)
    return 1 if rollouts.errors else 0


def report(rollouts: Rollouts, seconds: float, page: str, output: Path | None) -> None:
    rows = rollouts.rows
    if output is not None:
        output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokens = Counter(version for row in rows for version in row["weight_versions"] if version is not None)
    many = Counter(len(set(row["weight_versions"]) - {None}) for row in rows)
    print(f"{len(rows)} rollouts in {seconds:.1f} s, {len(rollouts.errors)} errors seen by clients")
    for error in rollouts.errors[:10]:
        print("  " + error)
    print("tokens by weight version:", dict(sorted(tokens.items(), key=lambda item: int(item[0]))))
    print("rollouts by number of weight versions:", dict(sorted(many.items())))
    for line in page.splitlines():
        if line.startswith("router_partial_rollout_"):
            print(line)
    longest = max(rows, key=lambda row: len(row["segments"] or ()), default=None)
    if longest is not None and longest["segments"]:
        print(f"segments of rollout {longest['id']}:", json.dumps(longest["segments"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--worker", action="append", default=[], metavar="URL", help="a running SGLang server; repeat it")
    add("--updates", type=int, default=5, help="weight updates (default: %(default)s)")
    add("--rollouts", type=int, default=16, help="rollouts in flight (default: %(default)s)")
    add("--tokens", type=int, default=100, help="tokens of each answer (default: %(default)s)")
    add("--interval-s", type=float, default=0.7, help="seconds between two updates (default: %(default)s)")
    add("--mode", choices=("abort", "retract", "in_place"), default="abort", help="how the workers pause")
    add("--update-from-disk", metavar="PATH", help="load these weights at each update, not only a new version")
    add("--vocabulary", type=int, default=1024, help="ids of prompts are below it (default: %(default)s)")
    add("--experts", action="store_true", help="ask for routed experts, too")
    add("--output", type=Path, metavar="FILE", help="write the rows there, one JSON line each")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
