"""The server of one of several processes."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from router_core.server import GC_THRESHOLDS, Server
from router_core.settings import RouterSettings


class ChildServer(Server):
    """The supervisor says when it ends, and publishes the port."""

    def _publish(self, settings: RouterSettings) -> None:
        gc.collect()
        gc.freeze()  # what lives until the end need not be looked at again and again
        gc.set_threshold(*GC_THRESHOLDS)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in (signal.SIGINT, signal.SIGHUP):  # of a terminal: the supervisor has them too
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, frame: self.handle_exit(number, frame))
        yield
