"""Asks a provider what caches outside the workers' GPUs hold of a prompt."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from router_core import ConfigError

log = logging.getLogger("router_prefix_affinity")


class OffGpuScores(Protocol):
    """``async def scores(body, worker_urls)``: worker's url -> share of the prompt that it could load, in [0, 1]."""

    async def __call__(self, body: Mapping[str, Any], worker_urls: Sequence[str]) -> Mapping[str, float]: ...


class Provider:
    """Calls an `OffGpuScores` with a deadline. What goes wrong is logged and counts as no hit."""

    def __init__(self, path: str, timeout_s: float) -> None:
        """``path`` is ``pkg.mod:name``. Raises ConfigError."""
        self._path = path
        self._timeout_s = timeout_s
        self._ask = _load(path)
        self.failures = 0

    async def scores(self, body: Mapping[str, Any], worker_urls: Sequence[str]) -> dict[str, float]:
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._ask(body, worker_urls)
            return {url: min(1.0, max(0.0, float(found[url]))) for url in worker_urls if url in found}
        except Exception as error:  # noqa: BLE001  # a stranger's code; routing goes on without its hint
            self.failures += 1
            log.warning("off-GPU scores of %s failed (%d so far): %r", self._path, self.failures, error)
            return {}


def _load(path: str) -> OffGpuScores:
    module, _, name = path.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path!r} cannot be imported as pkg.mod:name: {error}", key=_KEY) from error
    if not callable(found):
        raise ConfigError(f"{path!r} is no async function", key=_KEY)
    return found  # type: ignore[no-any-return]  # checked as far as it can be


_KEY = "plugins.prefix_affinity.off_gpu_provider"
