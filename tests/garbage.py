"""What would be left to Python's garbage collector."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

OURS = ("router_", "uvicorn.", "httptools.")


@contextmanager
def garbage() -> Iterator[Counter[str]]:
    """Afterwards: what only the collector would have freed, by type."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
    finally:
        gc.set_debug(0)
        gc.enable()
    names = [f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage]
    gc.garbage.clear()
    found.update(name for name in names if name.startswith(OURS) and not name.startswith("router_core.testing"))
