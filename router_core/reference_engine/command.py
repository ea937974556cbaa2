"""``router-core engine``: the flags of an engine, and how it is run until it is stopped.

Light to import; numpy, the tokenizer and the server come when an engine is made.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from router_core.reference_engine.options import EngineOptions

if TYPE_CHECKING:
    from router_core.reference_engine.server import RunningEngine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the engine's flags to the parser of a subcommand."""
    defaults = EngineOptions()
    add = parser.add_argument
    add("--host", default=defaults.host, help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=defaults.port, help="port to listen on; 0 takes a free one (default: %(default)s)")
    add(
        "--dialect",
        choices=("sglang", "vllm"),
        default=defaults.dialect,
        help="whose wire to speak (default: %(default)s)",
    )
    add(
        "--model",
        type=Path,
        metavar="DIRECTORY",
        help="checkpoint of a Qwen3MoE model; else weights are drawn from --model-seed",
    )
    add(
        "--model-seed",
        type=int,
        default=defaults.model_seed,
        metavar="N",
        help="seed of the weights (default: %(default)s)",
    )
    add("--seed", type=int, metavar="N", help="seed of requests that bring none (default: a new one for each)")
    add(
        "--served-model-name",
        default=defaults.served_model_name,
        metavar="NAME",
        help="name of the model (default: %(default)s)",
    )
    add(
        "--weight-version",
        default=defaults.weight_version,
        metavar="TEXT",
        help="weight version to begin with (default: %(default)s)",
    )
    add(
        "--context-length",
        type=int,
        default=defaults.context_length,
        metavar="TOKENS",
        help="most tokens of prompt and answer together",
    )
    add(
        "--step-delay-s",
        type=float,
        default=defaults.step_delay_s,
        metavar="SECONDS",
        help="seconds each token takes at least",
    )
    add(
        "--max-running-requests",
        type=int,
        default=defaults.max_running_requests,
        metavar="N",
        help="requests above it wait",
    )
    add(
        "--max-cached-tokens",
        type=int,
        default=defaults.max_cached_tokens,
        metavar="TOKENS",
        help="bound of the prefix cache",
    )
    add("--no-routed-experts", dest="routed_experts", action="store_false", help="never tell which experts were chosen")
    add("--no-reasoning-parser", dest="reasoning_parser", action="store_false", help="leave thinking in the content")
    add("--no-tool-call-parser", dest="tool_call_parser", action="store_false", help="leave tool calls in the content")
    add("--print-tokenizer", action=_PrintTokenizer, nargs=0, help="print the directory of its tokenizer, and end")
    add(
        "--ready-file",
        type=Path,
        metavar="FILE",
        help="write one JSON line with host, port, url and pid there once it listens",
    )


class _PrintTokenizer(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> None:
        from router_core.reference_engine.tokenizer import ASSETS

        print(ASSETS)
        parser.exit()


def options_from(arguments: argparse.Namespace) -> EngineOptions:
    """Return the options that the parsed flags ask for."""
    known = EngineOptions.__dataclass_fields__
    return EngineOptions(**{name: value for name, value in vars(arguments).items() if name in known})


def run_engine(arguments: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; return the exit status. What cannot be served is said on stderr: status 2."""
    try:
        asyncio.run(serve(options_from(arguments), arguments.ready_file))
    except (OSError, ValueError) as error:
        print(f"router-core engine: {error}", file=sys.stderr)
        return 2
    return 0


async def serve(options: EngineOptions, ready_file: Path | None = None) -> None:
    """Serve until SIGINT or SIGTERM. ``ready_file`` is written, whole or not at all, once the port is open."""
    from router_core.reference_engine.server import running_engine as running

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with running(options) as served:
        line = json.dumps({"host": served.host, "port": served.port, "url": served.url, "pid": os.getpid()})
        if ready_file is not None:
            partial = ready_file.with_name(ready_file.name + ".partial")
            partial.write_text(line + "\n", encoding="utf-8")
            partial.replace(ready_file)
        print(f"reference engine ({options.dialect}) on {served.url}", flush=True)
        await stopped.wait()


@asynccontextmanager
async def running_engine(**options: Any) -> "AsyncIterator[RunningEngine]":
    """Serve an engine in this loop on a loopback port until the block ends; ``options`` are those of EngineOptions."""
    from router_core.reference_engine.server import running_engine as running

    async with running(EngineOptions(**options)) as served:
        yield served
