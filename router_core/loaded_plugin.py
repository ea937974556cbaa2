"""A plugin of this process, and what becomes of a hook that fails.

A raise is kept inside its exchange: observers are logged and dropped for the exchange, any other hook fails it (500
``plugin_error``), unless its plugin says ``on_error = "skip"``. Refusals, a client that left and a worker's fault are
no failures of a plugin.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from router_core.errors import AttemptWithdrawn, ClientLeft, PluginError, Reject, WorkerFault
from router_core.hookspecs import ASYNC

log = logging.getLogger("router_core")

PASSING = (Reject, ClientLeft, AttemptWithdrawn, WorkerFault, PluginError)
"""What an async hook may raise without being at fault; a plain one only Reject."""
FAULTS = (Exception, SystemExit, asyncio.CancelledError)
"""What costs a plugin its own exchange only; a cancellation only where nobody cancelled the exchange."""


@dataclass(eq=False, slots=True)
class LoadedPlugin:
    """One plugin of this process: its instance, settings, where it came from, and what went wrong with it."""

    name: str
    instance: Any
    settings: Any
    distribution: str
    version: str
    on_error: Literal["fail", "skip"]
    hooks: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """Hook name -> its implementation, taking the hook's arguments by position."""
    errors: Counter[str] = field(default_factory=Counter)
    """Failures by hook."""
    is_off: bool = False
    """Whether it was switched off for failing too often."""
    on_failure: Callable[[LoadedPlugin], None] | None = None

    def failed(self, hook: str, error: BaseException | str) -> PluginError:
        """Counts and logs a failure; the error says which plugin, which hook, and what."""
        self.errors[hook] += 1
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        trace = error if isinstance(error, BaseException) else None
        log.error("plugin %r failed in hook %r: %s", self.name, hook, text, exc_info=trace)
        if self.on_failure is not None:
            self.on_failure(self)
        return PluginError(self.name, hook, text)


Call = tuple[LoadedPlugin, Callable[..., Any]]
HookWrap = Callable[[LoadedPlugin, str, Callable[..., Any]], Callable[..., Any]]
"""Plugin, hook and implementation -> what is called in its place."""


def observe(plugin: LoadedPlugin, hook: str, call: Callable[..., Any], *args: Any) -> bool:
    """Calls an observer; False when it raised, which is logged, counted, and otherwise without effect."""
    try:
        call(*args)
    except FAULTS as error:  # nothing depends on an observer
        plugin.failed(hook, error)
        return False
    return True


def is_cancelled(error: BaseException) -> bool:
    """Whether this is a cancellation of the task that runs the hook, and not one that the plugin raised itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def failed(plugin: LoadedPlugin, hook: str, error: BaseException) -> Any:
    """What a hook raised: passed on where it may raise that, else the failure of its plugin.

    Returns None where the plugin is to be skipped.
    """
    if isinstance(error, PASSING if hook in ASYNC else Reject) or is_cancelled(error):
        raise error
    failure = plugin.failed(hook, error)
    if plugin.on_error != "skip":
        raise failure from error
    return None


def refuse(plugin: LoadedPlugin, hook: str, fault: str) -> None:
    failure = plugin.failed(hook, fault)
    if plugin.on_error != "skip":
        raise failure
