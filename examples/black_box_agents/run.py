"""Runs an agent that knows only a base URL through a capturing router, and compares what was kept with a witness.

    python run.py -- python agents/openai_sdk.py                          over a reference engine that is started here
    python run.py --kind sglang --engine http://127.0.0.1:30000 --tokenizer MODEL -- COMMAND...     over a real engine

The command finds the session's base URL in ``OPENAI_BASE_URL``, and in its arguments wherever ``{base_url}`` stands.
Exit status 1 when anything differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from compare import Comparison
from witness import TIMEOUT, Witness

import router_core.reference_engine

REFERENCE_TOKENIZER = Path(router_core.reference_engine.__file__).parent / "assets"
PLUGINS = '["metrics","hf_tokenizer","tito","weight_version","health","retry","session_affinity","least_inflight"]'
READY_S = 120


@asynccontextmanager
async def running(*command: str) -> AsyncIterator[str]:
    """A router-core process on a free port; its url."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.json"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "router_core", *command, "--port", "0", "--ready-file", str(ready)
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


async def wait_until_ready(http: aiohttp.ClientSession, router: str) -> None:
    """Until the tokenizer is loaded."""
    async with asyncio.timeout(READY_S):
        while True:
            async with http.get(f"{router}/readiness") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.1)


async def run_agent(command: list[str], base_url: str) -> int:
    """The agent in a directory of its own; it knows the base URL and nothing else. Its exit status."""
    environment = {**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "none"}
    command = [part.replace("{base_url}", base_url) for part in command]
    with tempfile.TemporaryDirectory() as directory:
        process = await asyncio.create_subprocess_exec(*command, cwd=directory, env=environment)
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


async def call(http: aiohttp.ClientSession, method: str, url: str, body: Any = None) -> Any:
    async with http.request(method, url, json=body) as answer:
        told = await answer.json(content_type=None)
        if answer.status >= 300:
            raise SystemExit(f"{method} {url}: {answer.status} {told}")
        return told


async def run(options: argparse.Namespace) -> int:
    words = json.loads(options.words.read_text(encoding="utf-8")) if options.words else []
    async with AsyncExitStack() as stack:
        engine, dictation = options.engine, options.kind
        if engine is None:
            flags = ("--dialect", options.kind, "--seed", "1", "--served-model-name", options.model)
            engine, dictation = await stack.enter_async_context(running("engine", *flags)), "reference"
        witness = await stack.enter_async_context(Witness(engine.rstrip("/"), words, dictation, options.cut).serving())
        settings = [f"enabled={PLUGINS}", f"plugins.tito.mode={options.mode}", "plugins.tito.debug=true"]
        settings += [f"plugins.hf_tokenizer.path={options.tokenizer}", *options.set]
        flags = [part for setting in settings for part in ("--set", setting)]
        router = await stack.enter_async_context(
            running("serve", "--worker", witness.url, "--log-level", options.log_level, *flags)
        )
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=TIMEOUT))
        await wait_until_ready(http, router)
        session = await call(http, "POST", f"{router}/sessions", json.loads(options.session))
        status = await run_agent(options.command, f"{session['base_url']}/v1")
        here = f"{router}/sessions/{session['session_id']}"
        wanted = {"format": "neutral", "picker": "all_leaves", "auxiliary": True}
        samples = await call(http, "POST", f"{here}/samples", wanted)
        default = await call(http, "POST", f"{here}/samples", {"format": "neutral"})
        described = await call(http, "GET", here)
        comparison = Comparison(witness.calls, samples)
        comparison.compare()
        tolerance = float("inf") if words and dictation == "sglang" else options.tolerance
        for row in samples["samples"]:
            await comparison.rescore(http, engine, options.kind, options.model, row, tolerance)
        comparison.report()
        kept = [f"{len(row['tokens'])} tokens ({sum(row['loss_mask'])} trained)" for row in default["samples"]]
        print(f"samples for training: {'; '.join(kept)}; left out: {default['left_out']}")
        metadata = described["metadata"]
        print("drift", metadata.get("drift"), "mismatches", metadata.get("mismatches"), "agent's exit status", status)
        if options.keep:
            whole = {"samples": samples, "session": described, "calls": [vars(one) for one in witness.calls]}
            options.keep.write_text(json.dumps(whole, default=lambda value: value.decode("utf-8", "replace")))
        print("all equal" if not comparison.faults else "NOT EQUAL")
        return 1 if comparison.faults or status else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Run an agent through a capturing router, and check what was kept.")
    parser.add_argument("--kind", choices=("sglang", "vllm"), default="sglang", help="whose wire the engine speaks")
    parser.add_argument("--engine", metavar="URL", help="a running engine; without it a reference engine is started")
    parser.add_argument("--model", default="tiny", help="the name under which the engine serves it")
    parser.add_argument("--tokenizer", default=str(REFERENCE_TOKENIZER), metavar="DIR", help="that of the engine")
    parser.add_argument("--mode", default="inject", help="plugins.tito.mode")
    parser.add_argument("--words", type=Path, metavar="FILE", help="JSON: a list of texts that the model is to say")
    parser.add_argument("--cut", type=int, metavar="N", help="break the connection under the answer of this call")
    parser.add_argument("--session", default="{}", metavar="JSON", help="body of POST /sessions")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="more settings of the router")
    parser.add_argument("--tolerance", type=float, default=2e-3, help="nats by which a second scoring may differ")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write everything that was seen there")
    parser.add_argument("--log-level", default="error", help="the router's")
    parser.add_argument("command", nargs="+", help="the agent, after --")
    options = parser.parse_args()
    options.command = [str(Path(part).absolute()) if Path(part).is_file() else part for part in options.command]
    return asyncio.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
