"""Which weights sampled which tokens, as an answer tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from .interface import Reading

Spans: TypeAlias = tuple[tuple[str | None, int, int], ...]
"""(version, start, end) over the completion; a version that nobody knows is None."""


def version_spans(value: Any, key: str = "version") -> Spans:
    """``[{"version", "start", "end"}, ...]`` as tuples; empty for anything else."""
    if not isinstance(value, Sequence):
        return ()
    try:
        return tuple((_text(span[key]), int(span["start"]), int(span["end"])) for span in value)
    except (TypeError, KeyError, ValueError):
        return ()


def read_versions(told: Mapping[str, Any], reading: Reading) -> None:
    """From ``meta_info`` or ``metadata``.

    ``segments``, of an answer that several workers made, say all that is known; the engine's own ``weight_versions``
    may then leave out the workers that do not tell.
    """
    if told.get("weight_version") is not None:
        reading.weight_version = str(told["weight_version"])
    spans = version_spans(told.get("segments"), "weight_version") or version_spans(told.get("weight_versions"))
    if spans:
        reading.weight_versions = spans


def told_spans(spans: Spans) -> list[dict[str, Any]]:
    """As SGLang says it."""
    return [{"version": version, "start": start, "end": end} for version, start, end in spans]


def _text(version: Any) -> str | None:
    return None if version is None else str(version)
