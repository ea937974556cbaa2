"""Medians, ratios within a round, and the tables of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tests.bench.load.contenders import DIRECT
from tests.bench.load.measure import Figures
from tests.bench.load.rounds import Result

RATIOS = {"cpu_ratio": "cpu_us", "rate_ratio": "mb_s"}
UNITS = {
    "rps": "requests/s",
    "mb_s": "MB/s",
    "cpu_us": "CPU µs",
    "cpu_ms": "CPU ms",
    "cpu_us_event": "CPU µs an event",
    "cpu_ratio": "CPU ratio",
    "rate_ratio": "rate ratio",
    "added_ratio": "added ratio",
    "latency_p50_us": "p50 µs",
    "latency_p99_us": "p99 µs",
    "added_p50_us": "added p50 µs",
    "first_byte_p99_us": "first byte p99 µs",
    "transit_p50_us": "transit p50 µs",
    "transit_p99_us": "transit p99 µs",
    "late_p50_ms": "late p50 ms",
    "late_p99_ms": "late p99 ms",
    "kib_each": "KiB each",
    "rss_added_mib": "MiB added",
    "lag_p999_ms": "lag p99.9 <= ms",
    "lag_looks": "looks",
    "errors": "errors",
}


def median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def figure(result: Result, name: str, key: str) -> float | None:
    """The median of a figure over the rounds; the sum of errors."""
    values = [run.get(key) if run is not None else None for run in result.runs.get(name, ())]
    if key == "errors":
        return sum(value for value in values if value is not None) if any(v is not None for v in values) else None
    return median(values)


def pairs(result: Result, name: str, other: str) -> Iterator[tuple[Figures, Figures]]:
    """The runs of two contenders in the same rounds."""
    for mine, its in zip(result.runs.get(name, ()), result.runs.get(other, ()), strict=False):
        if mine is not None and its is not None:
            yield mine, its


def ratio(result: Result, name: str, other: str, key: str) -> float | None:
    """The median of the ratios within a round."""
    return median(
        mine[key] / its[key] if mine.get(key) is not None and its.get(key) else None
        for mine, its in pairs(result, name, other)
    )


def added(result: Result, name: str, key: str, other: str = DIRECT) -> float | None:
    """The median of what is added to the other's figure within a round."""
    return median(
        mine[key] - its[key] if mine.get(key) is not None and its.get(key) is not None else None
        for mine, its in pairs(result, name, other)
    )


def cell(result: Result, name: str, column: str, reference: str | None) -> float | None:
    if column in RATIOS:
        return ratio(result, name, reference, RATIOS[column]) if reference else None
    if column == "added_p50_us":
        return added(result, name, "latency_p50_us")
    if column == "added_ratio":
        mine, its = (added(result, each, "latency_p50_us") if each else None for each in (name, reference))
        return mine / its if mine is not None and its else None
    return figure(result, name, column)


def shown(value: float | None) -> str:
    match value:
        case None:
            return "–"
        case _ if abs(value) >= 100 or value == int(value):
            return f"{value:,.0f}"
        case _ if abs(value) >= 10:
            return f"{value:.1f}"
    return f"{value:.2f}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(result: Result, reference: str | None) -> str:
    """One scenario's table, in Markdown."""
    scenario = result.scenario
    reference = scenario.reference or reference
    rows = [
        [name, *(shown(cell(result, name, column, reference)) for column in scenario.columns)] for name in result.runs
    ]
    text = f"### {scenario.name}: {scenario.sense}\n\n"
    if any(column.endswith("_ratio") for column in scenario.columns) and reference in result.runs:
        text += f"Ratios are to {reference}, within a round.\n\n"
    text += markdown([scenario.name, *(UNITS[column] for column in scenario.columns)], rows)
    for name, why in result.failed.items():
        text += f"\n\n{name} is missing: {why}"
    return text


Results = Mapping[str, Result]
Value = Callable[[Results], float | None]
