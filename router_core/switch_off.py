"""Switches a plugin off that fails again and again, if it said that it may be skipped."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from router_core.loaded_plugin import LoadedPlugin

log = logging.getLogger("router_core")


class SwitchOff:
    """Counts failures of plugins with ``on_error = "skip"``; one that says ``fail`` is never switched off.

    ``on_off`` is called once for each plugin that goes.
    """

    def __init__(
        self, now: Callable[[], float], *, max_failures: int, window_s: float, on_off: Callable[[], object]
    ) -> None:
        self._now = now
        self._max_failures = max_failures
        self._window_s = window_s
        self._on_off = on_off
        self._failures: dict[str, deque[float]] = {}

    def failed(self, plugin: LoadedPlugin) -> None:
        """One failure more."""
        if plugin.on_error != "skip" or plugin.is_off or not self._max_failures:
            return
        now = self._now()
        times = self._failures.setdefault(plugin.name, deque(maxlen=self._max_failures))
        times.append(now)
        if len(times) == self._max_failures and now - times[0] <= self._window_s:
            plugin.is_off = True
            log.critical(
                "plugin %r IS SWITCHED OFF: it failed %d times within %g s (router.skip_max_failures); requests go on "
                "without it until the router is started or reloaded",
                plugin.name,
                self._max_failures,
                self._window_s,
            )
            self._on_off()
