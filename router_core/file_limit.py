"""How many files this process may open: a connection is one, a request that a worker has takes two."""

from __future__ import annotations

import logging
import os

log = logging.getLogger("router_core")

AT_ONCE = 4096
"""Requests at workers at one time that there must be room for."""
SPARE = 128
"""Listeners, logs, probes, control calls."""
MOST = 1 << 20
"""Files that room is made for at most: 8 MiB of the system's memory, at 8 bytes each."""


def files_wanted(max_held_requests: int) -> int:
    """Open files with so many requests at workers, and as many held as may be."""
    return 2 * AT_ONCE + max_held_requests + SPARE


def raise_file_limit(max_held_requests: int) -> None:
    """As many as the system lets this process have; warns where that is too few."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = soft
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            limit = hard
        except (OSError, ValueError) as error:  # macOS does not let a process have what it calls unlimited
            log.warning("the limit of open files could not be raised above %d: %s", soft, error)
    wanted = files_wanted(max_held_requests)
    if limit == resource.RLIM_INFINITY or limit >= wanted:
        return
    log.warning(
        "this process may open %d files, enough for about %d requests at workers at one time; more of them fail. "
        "For %d, and router.max_held_requests = %d beside them, it takes %d: raise the hard limit (ulimit -Hn, "
        "LimitNOFILE= of systemd, --ulimit nofile= of docker)",
        limit,
        max(0, limit - SPARE) // 2,
        AT_ONCE,
        max_held_requests,
        wanted,
    )


def grow_file_table(max_held_requests: int) -> None:
    """Has Linux make room for them now: in a process with threads it waits 20 ms each time that the table doubles."""
    try:
        import resource
        from fcntl import F_DUPFD_CLOEXEC, fcntl
    except ImportError:  # not on Windows
        return
    limit, wanted = resource.getrlimit(resource.RLIMIT_NOFILE)[0], min(files_wanted(max_held_requests), MOST)
    end, other = os.pipe()
    os.close(other)
    try:
        os.close(fcntl(end, F_DUPFD_CLOEXEC, wanted if limit == resource.RLIM_INFINITY else min(wanted, limit - 1)))
    except OSError as error:  # the last number is taken, or there is no memory for it
        log.debug("no room is made for files: %s", error)
    finally:
        os.close(end)
