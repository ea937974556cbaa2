"""How the demo's lines look."""

from __future__ import annotations

import time

MARK = "==="


class Stopwatch:
    """Prints lines with the seconds since it was made."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._since

    def say(self, text: str) -> None:
        print(f"{self.seconds():5.2f}s  {text}", flush=True)

    def write(self, text: str) -> None:
        """A piece of a line, as it comes."""
        print(text, end="", flush=True)

    def mark(self, text: str) -> None:
        """A line that stands out: what is made to happen, and what comes of it."""
        self.say(f"{MARK} {text} ".ljust(100, MARK[0]))


def example(router_url: str, worker_urls: list[str], command: str) -> str:
    """What to try while everything is left serving."""
    return (
        f"\nStill serving, until Ctrl-C: router {router_url}, workers {' '.join(worker_urls)}\n"
        f"  {command}\n"
        f"  curl {router_url}/workers\n"
    )
