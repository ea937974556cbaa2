"""What is sent, what the worker answers, and which figures of it are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.bench.load.bodies import ROW_BYTES, Script
from tests.bench.load.client import Load
from tests.bench.load.contenders import DIRECT
from tests.bench.load.routers import HOOK_NAMES, PLUGIN_NAMES

USUAL = (DIRECT, "bare", "default", "default/asgi", "all")
CPU = ("cpu_us", "cpu_ratio")
CLOSED = ("rps", *CPU, "latency_p50_us", "latency_p99_us", "errors")
ONCE = ("late_p50_ms", "late_p99_ms", "kib_each", *CPU, "errors")
STREAMS = ("first_byte_p99_us", "transit_p50_us", "transit_p99_us", "cpu_us_event", "cpu_ratio", "kib_each", "errors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of load."""

    name: str
    sense: str
    script: Script
    load: Load
    columns: Sequence[str]
    routers: Sequence[str] = USUAL
    has_peers: bool = True
    reference: str | None = None
    """To whom ratios are given; None: to the reference peer."""
    may_wrk: bool = False
    """Whether wrk can send it: one request after another's answer, and no stream."""
    settings: Sequence[str] = ()
    """Settings of this router in all its configurations."""


SMALL = Script()
SLOW = Script(delay_s=2.0)
LARGE_TOKENS = 50 * 2**20 * 3 // 4 // ROW_BYTES
"""Tokens whose routed experts are 50 MiB in base64."""
LARGE = Script(prompt_tokens=LARGE_TOKENS - 3, has_experts=True)

SCENARIOS = (
    Scenario(
        name="small",
        sense="answers of 360 bytes, 64 connections",
        script=SMALL,
        load=Load(64, 2.0),
        columns=CLOSED,
        routers=(DIRECT, "bare", "bare/asgi", "default", "default/asgi", "all", "all/asgi"),
        may_wrk=True,
    ),
    Scenario(
        name="hooks",
        sense="small, with three plugins that do nothing at one hook, and at eight",
        script=SMALL,
        load=Load(64, 1.0),
        columns=CLOSED,
        routers=HOOK_NAMES,
        has_peers=False,
        reference="bare",
        may_wrk=True,
    ),
    Scenario(
        name="plugins",
        sense="small, with each plugin alone, and all of them",
        script=SMALL,
        load=Load(64, 1.0),
        columns=CLOSED,
        routers=PLUGIN_NAMES,
        has_peers=False,
        reference="bare",
        may_wrk=True,
    ),
    Scenario(
        name="latency",
        sense="small, one connection",
        script=SMALL,
        load=Load(1, 2.0),
        columns=("latency_p50_us", "latency_p99_us", "added_p50_us", "added_ratio", "cpu_us", "errors"),
        may_wrk=True,
    ),
    Scenario(
        name="rollout",
        sense="prompts of 32 KiB, answers of 70 KB, 32 connections",
        script=Script(prompt_tokens=8150, tokens=1700),
        load=Load(32, 2.0),
        columns=("rps", "mb_s", *CPU, "latency_p50_us", "latency_p99_us", "errors"),
        may_wrk=True,
    ),
    Scenario(
        name="slow1k",
        sense="1,000 requests of 2 s, sent within 0.5 s",
        script=SLOW,
        load=Load(1000, ramp_s=0.5),
        columns=ONCE,
    ),
    Scenario(
        name="slow4k",
        sense="4,000 requests of 2 s, sent within 1.5 s",
        script=SLOW,
        load=Load(4000, ramp_s=1.5),
        columns=ONCE,
    ),
    Scenario(
        name="stream64",
        sense="64 streams of 200 events, one every 20 ms",
        script=Script(events=200, interval_s=0.02),
        load=Load(64, ramp_s=0.02),
        columns=STREAMS,
    ),
    Scenario(
        name="stream1k",
        sense="1,000 streams of 20 events, one every 200 ms",
        script=Script(events=20, interval_s=0.2),
        load=Load(1000, ramp_s=1.0),
        columns=STREAMS,
    ),
    Scenario(
        name="large8",
        sense="eight answers of 50 MiB at once",
        script=LARGE,
        load=Load(8),
        columns=("mb_s", "rate_ratio", "rss_added_mib", "cpu_ms", "cpu_ratio", "errors"),
        routers=(*USUAL, "plugin:routed_experts"),
    ),
    Scenario(
        name="stall",
        sense="how late the loop wakes up amid answers of 50 MiB",
        script=LARGE,
        load=Load(8, 3.0),
        columns=("mb_s", "lag_p999_ms", "lag_looks", "errors"),
        routers=("plugin:metrics", "default", "all"),
        has_peers=False,
        settings=("plugins.metrics.lag_interval_s=0.002",),
    ),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def shrunk(scenario: Scenario) -> Scenario:
    """The same load, tiny: for trying things out."""
    script, load = scenario.script, scenario.load
    return replace(
        scenario,
        script=replace(
            script,
            prompt_tokens=min(script.prompt_tokens, 400),
            delay_s=min(script.delay_s, 0.05),
            events=min(script.events, 5),
            interval_s=min(script.interval_s, 0.01),
        ),
        load=replace(
            load,
            connections=min(load.connections, 8),
            duration_s=min(load.duration_s, 0.2),
            ramp_s=min(load.ramp_s, 0.05),
        ),
    )
