"""Joins the metrics pages of many workers into one page of Prometheus text (exposition format 0.0.4)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(?:\{(.*)\})?[ \t]*(\S.*)")
_OWN_LABEL = re.compile(r'(^|,)[ \t]*worker[ \t]*=[ \t]*"')


@dataclass(slots=True)
class _Family:
    heads: dict[str, str] = field(default_factory=dict)
    """``HELP`` and ``TYPE`` lines; the first worker's hold."""
    samples: list[str] = field(default_factory=list)


def join_pages(pages: Iterable[tuple[str, str]]) -> str:
    """``pages`` are ``(worker's name, its page)``. Every sample gets a ``worker`` label, and each family stands once.

    A ``worker`` label of the engine's own becomes ``exported_worker``. What is no sample is left out.
    """
    families: dict[str, _Family] = {}
    for worker, page in pages:
        label = 'worker="' + worker.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") + '"'
        current = ""
        for line in page.split("\n"):
            if line.startswith("#"):
                words = line.split(" ", 3)
                if len(words) > 2 and words[1] in ("HELP", "TYPE"):
                    current = words[2]
                    families.setdefault(current, _Family()).heads.setdefault(words[1], line.rstrip())
            elif (sample := _SAMPLE.fullmatch(line.rstrip())) is not None:
                name, labels, rest = sample.groups()
                family = current if name == current or name.startswith(current + "_") else name
                families.setdefault(family, _Family()).samples.append(f"{name}{{{_with(label, labels)}}} {rest}")
    lines = []
    for family_ in families.values():
        if family_.samples:
            lines += [family_.heads[kind] for kind in ("HELP", "TYPE") if kind in family_.heads]
            lines += family_.samples
    return "".join(line + "\n" for line in lines)


def _with(label: str, labels: str | None) -> str:
    if not labels or not labels.strip():
        return label
    return f"{label}," + _OWN_LABEL.sub(r'\1exported_worker="', labels)
