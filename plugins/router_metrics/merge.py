"""One page out of those of several processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

LARGEST = frozenset(("router_worker_info", "router_worker_state", "router_oldest_hold_seconds"))
"""Gauges of which the largest is shown; everything else is summed."""
MARK = "# MERGE "
"""Begins a line ``# MERGE NAME max`` by which a plugin says the same of a gauge of its own."""


@dataclass(slots=True)
class _Family:
    head: list[str] = field(default_factory=list)
    samples: dict[str, float] = field(default_factory=dict)
    """Name and labels, as they are written -> value."""


def merge_pages(pages: Sequence[bytes]) -> bytes:
    """Samples of the same name and labels are summed, or the largest is taken; families stay in order."""
    families: dict[str, _Family] = {}
    largest = set(LARGEST)
    for page in pages:
        name = ""
        for line in page.decode().splitlines():
            if line.startswith(MARK):
                largest.add(line.split()[2])
            elif line.startswith("#"):
                name = line.split(" ", 3)[2] if line.count(" ") > 1 else ""
                family = families.setdefault(name, _Family())
                if line not in family.head:
                    family.head.append(line)
            elif line:
                _add(families.setdefault(name, _Family()).samples, line, largest)
    lines = [line for family in families.values() for line in (*family.head, *map(_line, family.samples.items()))]
    return ("\n".join(lines) + "\n").encode()


def _add(samples: dict[str, float], line: str, largest: set[str]) -> None:
    key, _, text = line.rpartition(" ")
    value, known = float(text), samples.get(key)
    if known is not None:
        value = max(known, value) if key.partition("{")[0] in largest else known + value
    samples[key] = value


def _line(sample: tuple[str, float]) -> str:
    key, value = sample
    text = repr(value).replace("inf", "+Inf").replace("-+", "-").replace("nan", "NaN")
    return f"{key} {text}"
