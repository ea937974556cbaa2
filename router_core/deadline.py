"""The deadline of the hook that runs, which stands still while the hook waits for the client's body."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

RUNNING: ContextVar[tuple[asyncio.Timeout, asyncio.Task[Any] | None] | None] = ContextVar("running hook", default=None)
"""The deadline of a hook and the task that runs it; tasks which the hook starts inherit the value, not the deadline."""


@contextmanager
def stopped() -> Iterator[None]:
    """Time spent inside does not count against the running hook, if one runs."""
    deadline, task = RUNNING.get() or (None, None)
    if (
        deadline is None
        or task is not asyncio.current_task()
        or deadline.expired()
        or (ends_at := deadline.when()) is None
    ):
        yield
        return
    now = asyncio.get_running_loop().time
    begun_at = now()
    deadline.reschedule(None)
    try:
        yield
    finally:
        deadline.reschedule(ends_at + now() - begun_at)
