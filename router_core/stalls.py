"""Says which hook blocks the event loop: a thread looks at the loop's heart, and at its stack when it stands still.

Nothing stands in the way of a call: the loop sets a time now and then, and the thread sleeps.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import time
from collections.abc import Sequence
from types import CodeType, FrameType

from router_core.loaded_plugin import LoadedPlugin

log = logging.getLogger("router_core")


class StallWatch:
    """Warns once for each time that the loop stands still for longer than ``stall_s``."""

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self.hooks: dict[CodeType, tuple[str, str]] = {}
        """Code of a hook -> its plugin and name."""
        self._unseen: set[str] = set()
        """Plugins with compiled hooks: these are on no stack."""
        self._beat_at = 0.0
        self._stopped = threading.Event()
        self._beat: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None

    def know(self, plugins: Sequence[LoadedPlugin]) -> None:
        """The plugins whose hooks can be named."""
        for plugin in plugins:
            for hook in plugin.hooks:
                function = getattr(type(plugin.instance), hook, None)
                if inspect.isfunction(function):
                    self.hooks[function.__code__] = (plugin.name, hook)
                elif function is not None:
                    self._unseen.add(plugin.name)

    def start(self) -> None:
        """In the loop that is watched."""
        if self.stall_s <= 0 or self._thread is not None:
            return
        self._stopped.clear()
        self._tick(asyncio.get_running_loop())
        self._thread = threading.Thread(
            target=self._look, args=(threading.get_ident(),), name="loop stall watch", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._beat is not None:
            self._beat.cancel()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beat_at = time.monotonic()
        self._beat = loop.call_later(self.stall_s / 2, self._tick, loop)

    def _look(self, thread: int) -> None:
        told_of = 0.0
        while not self._stopped.wait(self.stall_s / 4):
            beat_at = self._beat_at
            if told_of != beat_at and time.monotonic() - beat_at > 1.5 * self.stall_s:
                told_of = beat_at
                log.warning(
                    "the event loop stands still for more than %g s (router.loop_stall_s): %s",
                    self.stall_s,
                    self._culprit(sys._current_frames().get(thread)),
                )

    def _culprit(self, frame: FrameType | None) -> str:
        """The hook on the stack, and the line that runs."""
        line = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "an unknown line"
        while frame is not None:
            if (found := self.hooks.get(frame.f_code)) is not None:
                return f"plugin {found[0]!r} blocks it in hook {found[1]!r}, at {line}"
            frame = frame.f_back
        unseen = f", unless a compiled one of {', '.join(sorted(self._unseen))}" if self._unseen else ""
        return f"no hook blocks it{unseen}, at {line}"
