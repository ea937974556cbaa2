"""The policies that are compared."""

from __future__ import annotations

from typing import Any

from tests.simulator.routing import Policy

NO_GATE: dict[str, Any] = {"overload_absolute": 1_000_000}
PREFIX: dict[str, Any] = {"block_bytes": 128}
"""A token is one character here and about four bytes in life, where the default block is 512."""


def affinity(name: str, *more: str, **settings: Any) -> Policy:
    return Policy(
        name, (*more, "session_affinity", "least_inflight"), {"session_affinity": settings, "prefix_affinity": PREFIX}
    )


def prefix(name: str, **settings: Any) -> Policy:
    return Policy(name, ("prefix_affinity", "least_inflight"), {"prefix_affinity": {**PREFIX, **settings}})


POLICIES = [
    Policy("round_robin", ("round_robin",)),
    Policy("power_of_two", ("power_of_two",), {"power_of_two": {"seed": 1}}),
    Policy("least_inflight", ("least_inflight",)),
    Policy("prompt_group", ("prompt_group", "least_inflight")),
    prefix("prefix_affinity"),
    prefix("prefix_affinity, no gate", **NO_GATE),
    affinity("hash", mode="hash"),
    affinity("hash, no gate", mode="hash", **NO_GATE),
    affinity("sticky"),
    affinity("sticky, no gate", **NO_GATE),
    affinity("sticky + prompt_group", "prompt_group"),
    affinity("sticky + prefix_affinity", "prefix_affinity"),
]


def gates() -> list[Policy]:
    """Sticky sessions under every gate that is worth a look."""
    return [
        affinity(f"sticky, gate {absolute}/{relative:g}", overload_absolute=absolute, overload_relative=relative)
        for absolute in (0, 4, 8, 16, 64)
        for relative in (1.1, 1.5, 2.0)
    ]
