"""Ends a process that its supervisor has left behind, and that does not see to it because it hangs.

It would keep the port, and no other router could be started there. A thread sees to it, so a hang in C that never lets
go of the interpreter's lock is beyond it.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time

from router_core.server import CUT_S
from router_core.settings import RouterSettings

BEYOND_GRACE_S = 5.0
"""Seconds, beyond the grace of requests and their cut, that a process gets to stop."""


def longest_stop_s(settings: RouterSettings) -> float:
    """Seconds after which a process that was to stop is killed."""
    return settings.shutdown_grace_s + 2 * CUT_S + BEYOND_GRACE_S


def watch_supervisor(link: socket.socket, settings: RouterSettings) -> None:
    """From a thread of its own: once nobody is at the other end, this process gets that long to stop."""
    arguments = (link.fileno(), longest_stop_s(settings))
    threading.Thread(target=_watch, args=arguments, name="supervisor watch", daemon=True).start()


def _watch(fd: int, after_s: float) -> None:
    poll = select.poll()
    poll.register(fd, 0)  # a hang-up is told unasked
    poll.poll()
    time.sleep(after_s)
    os._exit(1)
