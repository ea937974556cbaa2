"""The configuration as all processes have it: at a reload all of them take the new one, or none does."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

from router_core.config import Config
from router_core.errors import ConfigError
from router_core.generation import RELOADED
from router_core.processes.broadcast import Broadcast
from router_core.processes.messages import Abandon, Commit, Fault, Prepare, Refused
from router_core.processes.slot import Slot
from router_core.settings import RouterSettings

log = logging.getLogger("router_core")


class Reloading:
    """``config`` and ``generation`` are what a process that starts now is built from."""

    def __init__(
        self, read_config: Callable[[], Config], config: Config, slots: Sequence[Slot], broadcast: Broadcast
    ) -> None:
        self.config = config
        self.generation = 1
        self.is_preparing = False
        """Whether plugins of a new configuration are being started: they may keep a process busy."""
        self._read_config = read_config
        self._first_settings = config.router
        self._slots = slots
        self._broadcast = broadcast
        self._running = asyncio.Lock()

    async def reload_quietly(self) -> None:
        """What is wrong is logged."""
        told = await self.reload()
        if isinstance(told, Refused):
            log.error("the configuration was not reloaded, the old one serves on: %s", told.message)

    async def reload(self) -> dict[str, Any] | Refused:
        """The answer of ``POST /admin/reload``."""
        if self._running.locked():
            return Refused(409, "reload_running", "a reload is under way")
        async with self._running:
            try:
                read = self._read_config()
            except ConfigError as error:
                return Refused(400, "bad_configuration", str(error))
            config = dataclasses.replace(read, router=_reloaded(self._first_settings, read.router))
            if (refused := await self._prepare(config)) is not None:
                await self._broadcast.run_in(self._slots, Abandon())
                return refused
            self.config = config
            self.generation += 1
            for slot in self._slots:
                if not slot.has_joined:
                    slot.kill()  # it is being built from the old configuration
            told = await self._broadcast.run_in(self._slots, Commit())
            answer = next((answer for answer in told.values() if isinstance(answer, dict)), {})
            changed = [
                f"router.{name}"
                for name in RouterSettings.model_fields
                if name not in RELOADED and getattr(read.router, name) != getattr(self._first_settings, name)
            ]
            return {**answer, "needs_restart": changed}

    async def _prepare(self, config: Config) -> Refused | None:
        """Why a process cannot serve by this configuration, if one cannot."""
        self.is_preparing = True
        try:
            told = await self._broadcast.run_in(self._slots, Prepare(config))
        finally:
            self.is_preparing = False
        refused = next((answer for answer in told.values() if isinstance(answer, Refused | Fault)), None)
        return Refused(400, "bad_configuration", refused.message) if isinstance(refused, Fault) else refused


def _reloaded(first: RouterSettings, read: RouterSettings) -> RouterSettings:
    """The settings of the start with those that a reload may change, or that name plugins."""
    names = (*RELOADED, "middleware_paths", "slime_router_middleware_paths")
    return first.model_copy(update={name: getattr(read, name) for name in names})
