"""``router-core demo``: the router's main job within seconds, with nothing but this package.

Two small engines and the router run as processes of their own (`processes`). Rollouts go through the router turn by
turn (`rollout`); one worker is killed on the way and comes back (`story`). Only the command line imports this.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from pathlib import Path

import aiohttp

from router_core.demo.failure import DemoFailure
from router_core.demo.processes import stop_all
from router_core.demo.story import DEADLINE_S, Story

__all__ = ["demo"]


def demo(*, keep: bool = False, port: int = 0) -> int:
    """Plays the demo with the router on ``port`` (0: a free one). ``keep``: all goes on serving until Ctrl-C.

    Returns the exit status: 1, with the reason on standard error, when anything was not as promised.
    """
    try:
        asyncio.run(_play(keep, port))
    except DemoFailure as failure:
        print(f"router-core demo: {failure}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    return 0


async def _play(keep: bool, port: int) -> None:
    task = asyncio.current_task()
    assert task is not None  # a coroutine that runs has a task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
    with tempfile.TemporaryDirectory(prefix="router-core-demo-") as directory:
        async with aiohttp.ClientSession(timeout=timeout) as client:
            story = Story(Path(directory), client, port)
            try:
                await story.start()
                await story.play()
                if keep:
                    await story.keep()
            finally:
                stop_all(story.processes)
