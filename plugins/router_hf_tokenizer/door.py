"""What the hook answers: a tokenizer that may still be loading, and the threads it works in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from router_core import Reject
from router_hf_tokenizer.tokenizer import HfTokenizer

P = ParamSpec("P")
T = TypeVar("T")


class TokenizerDoor:
    """``tokenizer = await door.ready()``, then ``await door.run(tokenizer.encode_batch, texts)``."""

    def __init__(self, name: str | None, path: str, threads: ThreadPoolExecutor, *, wait_s: float) -> None:
        self.name = name
        self.path = path
        self.fault: str | None = None
        """Why there is no tokenizer and will be none."""
        self.waiting = 0
        """Work that runs or waits for a thread."""
        self._threads = threads
        self._wait_s = wait_s
        self._tokenizer: HfTokenizer | None = None
        self._settled = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        return self._tokenizer is not None

    async def ready(self) -> HfTokenizer:
        """The loaded tokenizer, for use in threads.

        Raises Reject: 503 ``warming`` when it is still being loaded after ``wait_s``, 500 when it cannot be.
        """
        if self._tokenizer is None and self.fault is None:
            try:
                async with asyncio.timeout(self._wait_s):
                    await self._settled.wait()
            except TimeoutError:
                raise Reject(503, "warming", f"the tokenizer {self.path!r} is being loaded", retry_after_s=1) from None
        if self._tokenizer is None:
            raise Reject(500, "tokenizer_failed", self.fault or f"the tokenizer {self.path!r} is not there")
        return self._tokenizer

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls ``work`` in one of the tokenizers' threads; what it raises is raised here."""
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(*args, **kwargs))
        finally:
            self.waiting -= 1

    def settle(self, found: HfTokenizer | str) -> None:
        """Loading has ended, with a tokenizer or with the reason why there is none."""
        if isinstance(found, str):
            self.fault = found
        else:
            self._tokenizer = found
        self._settled.set()
