"""What capture adds to the metrics page, in Prometheus text format."""

from __future__ import annotations

from collections.abc import Mapping

from .capture import Capture

COUNTERS = (
    ("turns", "how", "Turns committed, by how their prompt came about."),
    ("prompts", "how", "Prompts rendered: bridge, or why none could be used."),
    ("observed", "reason", "Turns whose prompt was left to the worker."),
    ("refused", "reason", "Calls that brought no finished sample."),
    ("untrainable", "reason", "Turns that were answered but are not in a trace."),
    ("drift", "kind", "Prompts that a worker did not generate from as meant."),
    ("mismatches", "kind", "Prompts that differ from the conversation rendered anew (debug)."),
)


def render(capture: Capture) -> str:
    """The lines."""
    counts = capture.counts
    values: tuple[Mapping[str, int], ...] = (
        counts.turns,
        counts.bridges,
        counts.observed,
        counts.refused,
        counts.untrainable,
        counts.drift,
        counts.mismatches,
    )
    lines: list[str] = []
    for (name, label, text), counter in zip(COUNTERS, values, strict=True):
        lines += _head(f"router_tito_{name}_total", "counter", text)
        lines += [f'router_tito_{name}_total{{{label}="{_label(key)}"}} {counter[key]}' for key in sorted(counter)]
    lines += _single("coalesced_total", "counter", "Requests that were given another one's answer.", counts.coalesced)
    lines += _single("evicted_total", "counter", "Sessions evicted for want of room.", counts.evicted)
    lines += _single("sessions", "gauge", "Sessions with a trace.", len(capture.traces))
    lines += _single("nodes", "gauge", "Messages in all traces.", capture.traces.nodes)
    lines += _single("bytes", "gauge", "Bytes kept for all sessions.", capture.traces.nbytes)
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _single(name: str, kind: str, text: str, value: int) -> list[str]:
    return [*_head(f"router_tito_{name}", kind, text), f"router_tito_{name} {value}"]


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
