"""Starts two small engines and a router, runs the rollout, and stops everything: python run.py"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import router_core.reference_engine

HERE = Path(__file__).parent
TOKENIZER = Path(router_core.reference_engine.__file__).parent / "assets"
START_S = 60.0


@contextmanager
def program(name: str, *arguments: str) -> Iterator[str]:
    """Runs ``router-core NAME`` on a free port until the block ends; gives its URL."""
    with tempfile.TemporaryDirectory() as directory:
        ready = Path(directory) / "ready.json"
        command = [
            sys.executable,
            "-P",
            "-m",
            "router_core",
            name,
            "--port",
            "0",
            "--ready-file",
            str(ready),
            *arguments,
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + START_S
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"router-core {name} did not start")
                time.sleep(0.05)
            yield str(json.loads(ready.read_text())["url"])
        finally:
            process.terminate()
            process.wait()


def wait_until_ready(router: str) -> None:
    """Until the tokenizer is loaded."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"{router}/readiness").close()
            return
        except urllib.error.HTTPError as answer:
            if time.monotonic() > deadline:
                raise SystemExit(f"the router is not ready: {answer.read().decode()}") from None
        time.sleep(0.1)


def main() -> int:
    with ExitStack() as stack:
        engines = [stack.enter_context(program("engine", "--seed", str(seed))) for seed in (1, 2)]
        workers = [argument for url in engines for argument in ("--worker", url)]
        tokenizer = f"plugins.hf_tokenizer.path={TOKENIZER}"
        config = ("--config", str(HERE / "plugins.toml"), "--set", tokenizer, "--log-level", "warning")
        router = stack.enter_context(program("serve", *config, *workers))
        wait_until_ready(router)
        status = subprocess.run([sys.executable, str(HERE / "rollout.py"), router], check=False).returncode
        with urllib.request.urlopen(f"{router}/radix_cache/stats") as answer:
            stats = json.load(answer)
        print(f"cache: {stats['trajectories']} trajectories, {stats['tokens']} tokens, {stats['reused_tokens']} reused")
        return status


if __name__ == "__main__":
    sys.exit(main())
