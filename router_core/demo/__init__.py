"""``router-core demo``: the router's main job within seconds.

Two small engines and the router run as processes of their own (`processes`). Rollouts go through the router turn by
turn; one worker is killed on the way and comes back (`story`). Which engines, and what rollouts send, is a `cast`:
`reference` needs nothing but this package, `smollm2` a small real language model. Only the command line imports this.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import aiohttp

from router_core.demo.cast import Cast
from router_core.demo.failure import DemoFailure
from router_core.demo.processes import stop_all
from router_core.demo.reference import ReferenceCast
from router_core.demo.smollm2 import SmolLM2Cast, find_weights
from router_core.demo.story import Story

__all__ = ["ENGINES", "demo"]

ENGINES = ("reference", "smollm2")
REQUEST_TIMEOUT_S = 60.0


def demo(engine: str = "reference", *, keep: bool = False, port: int = 0) -> int:
    """Plays the demo with the router on ``port`` (0: a free one). ``keep``: all goes on serving until Ctrl-C.

    ``engine`` is one of ENGINES. Raises ConfigError where its packages are not installed. Returns the exit status:
    1, with the reason on standard error, when anything was not as promised.
    """
    make: Callable[[aiohttp.ClientSession], Cast] = ReferenceCast
    if engine == "smollm2":
        make = partial(SmolLM2Cast, weights=find_weights())
    try:
        asyncio.run(_play(make, keep, port))
    except DemoFailure as failure:
        print(f"router-core demo: {failure}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    return 0


async def _play(make: Callable[[aiohttp.ClientSession], Cast], keep: bool, port: int) -> None:
    task = asyncio.current_task()
    assert task is not None  # a coroutine that runs has a task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with tempfile.TemporaryDirectory(prefix="router-core-demo-") as directory:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)) as client:
            story = Story(Path(directory), client, port, make(client))
            try:
                await story.start()
                await story.play()
                if keep:
                    await story.keep()
            finally:
                stop_all(story.processes)
