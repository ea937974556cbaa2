"""The goals of the router, and where the measured figures stand."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.bench.load.table import Results, Value, added, figure, markdown, ratio, shown

FAST, ASGI = "default", "default/asgi"


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that is to be at most ``least`` (or at least, where ``is_floor``)."""

    text: str
    least: float
    aim: float
    value: Value
    is_floor: bool = False
    unit: str = ""

    def verdict(self, value: float | None) -> str:
        if value is None:
            return "not measured"
        if value == self.aim or (value > self.aim) is self.is_floor:
            return "aim met"
        if value == self.least or (value > self.least) is self.is_floor:
            return "met"
        return "missed"


def _ratio(scenario: str, name: str, other: str, key: str) -> Value:
    return lambda results: ratio(results[scenario], name, other, key) if scenario in results else None


def _figure(scenario: str, name: str, key: str) -> Value:
    return lambda results: figure(results[scenario], name, key) if scenario in results else None


def _over(scenario: str, name: str, other: str, key: str, scale: float) -> Value:
    """What is added to the other's figure."""

    def value(results: Results) -> float | None:
        more = added(results[scenario], name, key, other) if scenario in results else None
        return more * scale if more is not None else None

    return value


def _added_ratio(name: str, other: str) -> Value:
    def value(results: Results) -> float | None:
        if "latency" not in results:
            return None
        mine, its = (added(results["latency"], each, "latency_p50_us") for each in (name, other))
        return mine / its if mine is not None and its else None

    return value


GOALS = (
    Goal(
        "small, plain ASGI front, default plugins: CPU against smg", 0.60, 0.45, _ratio("small", ASGI, "smg", "cpu_us")
    ),
    Goal("small, fast front, default plugins: CPU against smg", 0.40, 0.25, _ratio("small", FAST, "smg", "cpu_us")),
    Goal("small, every plugin on: CPU against smg with none", 1.5, 1.0, _ratio("small", "all", "smg", "cpu_us")),
    Goal("small, fast front, default plugins: CPU against nginx", 3, 2, _ratio("small", FAST, "nginx", "cpu_us")),
    Goal("hooks: CPU of 8 hooks x 3 plugins over none", 1.15, 1.08, _ratio("hooks", "hooks", "bare", "cpu_us")),
    Goal("latency: added median against nginx", 2, 1.25, _added_ratio(FAST, "nginx")),
    Goal("rollout: CPU against nginx", 4, 2.3, _ratio("rollout", FAST, "nginx", "cpu_us")),
    Goal("slow4k: errors", 0, 0, _figure("slow4k", FAST, "errors")),
    Goal("slow4k: late p99 against smg", 1, 0.4, _ratio("slow4k", FAST, "smg", "late_p99_ms")),
    Goal("slow4k: memory of a request in flight", 24, 14, _figure("slow4k", FAST, "kib_each"), unit=" KiB"),
    Goal("stream1k: memory of an idle stream", 24, 14, _figure("stream1k", FAST, "kib_each"), unit=" KiB"),
    Goal("stream1k: CPU of an event against smg", 1.2, 0.95, _ratio("stream1k", FAST, "smg", "cpu_us_event")),
    Goal(
        "stream1k: transit p50 over nginx's",
        *(0.2, 0.05, _over("stream1k", FAST, "nginx", "transit_p50_us", 1e-3)),
        unit=" ms",
    ),
    Goal("large8: memory added", 64, 24, _figure("large8", FAST, "rss_added_mib"), unit=" MiB"),
    Goal("large8: rate against smg", 1.0, 1.0, _ratio("large8", FAST, "smg", "mb_s"), is_floor=True),
    Goal("large8: rate against nginx", 0.0, 0.95, _ratio("large8", FAST, "nginx", "mb_s"), is_floor=True),
    Goal(
        "large8, routed_experts on: CPU over none (at least: equal bytes, which the suite looks at)",
        *(math.inf, 1.1, _ratio("large8", "plugin:routed_experts", "bare", "cpu_us")),
    ),
    Goal("stall: lag of the loop, p99.9, default plugins", 50, 20, _figure("stall", FAST, "lag_p999_ms"), unit=" ms"),
    Goal("stall: lag of the loop, p99.9, every plugin", 50, 20, _figure("stall", "all", "lag_p999_ms"), unit=" ms"),
)


def goals_table(results: Results) -> str:
    rows = []
    for goal in GOALS:
        value = goal.value(results)
        sign = "≥" if goal.is_floor else "≤"
        told = "–" if value is None else shown(value) + goal.unit
        rows.append(
            [
                goal.text,
                f"{sign} {goal.least:g}{goal.unit}" if math.isfinite(goal.least) else "",
                f"{sign} {goal.aim:g}{goal.unit}",
                told,
                goal.verdict(value),
            ]
        )
    return markdown(["goal", "at least", "aim", "measured", ""], rows)
