"""The simulator runs the real plugins, the same way each time, and what it finds holds."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.simulator.policies import NO_GATE, POLICIES, affinity
from tests.simulator.routing import Policy
from tests.simulator.simulation import Loss, Result, Scenario, Simulation
from tests.simulator.trace import Session, Shape, draw_trace

SMALL = replace(Shape(), groups=6, samples=8)
POOL = Scenario(workers=4)
BY_NAME = {policy.name: policy for policy in POLICIES}


def play(policy: Policy, scenario: Scenario = POOL, sessions: list[Session] | None = None) -> Result:
    simulation = Simulation(policy, scenario)
    result = asyncio.run(simulation.play(draw_trace(SMALL, 1) if sessions is None else sessions))
    assert simulation.inflight == 0
    return result


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_every_policy_serves_every_turn_and_repeats_itself(policy: Policy) -> None:
    first, second = play(policy), play(policy)
    assert first == second
    assert first.turns == sum(len(session.turns) for session in draw_trace(SMALL, 1))
    assert first.retried == 0


def test_affinity_finds_more_prefixes_than_balancing() -> None:
    balanced = play(BY_NAME["least_inflight"])
    for name in ("sticky", "hash", "prefix_affinity", "prompt_group"):
        assert play(BY_NAME[name]).hit_share > balanced.hit_share + 0.1
        assert play(BY_NAME[name]).makespan_s < balanced.makespan_s


@pytest.mark.parametrize("mode", ["sticky", "hash"])
def test_without_a_gate_and_without_a_loss_no_session_moves(mode: str) -> None:
    assert play(affinity(mode, mode=mode, **NO_GATE)).moves == 0


def test_a_lost_workers_turns_are_sent_again_and_its_sessions_move_once() -> None:
    losing = replace(POOL, losses=(Loss(1, 5.0, 20.0),))
    result = play(affinity("sticky", **NO_GATE), losing)
    assert result.turns == play(affinity("sticky", **NO_GATE)).turns
    assert result.retried > 0
    assert 0 < result.moves <= len(draw_trace(SMALL, 1)) // 4 + 1


def test_fewer_sessions_at_a_time_take_longer_and_none_is_left_out() -> None:
    all_at_once = play(BY_NAME["sticky"])
    one_by_one = play(BY_NAME["sticky"], replace(POOL, concurrent_sessions=4))
    assert one_by_one.turns == all_at_once.turns
    assert one_by_one.makespan_s > all_at_once.makespan_s


def test_a_trace_is_drawn_by_its_seed() -> None:
    assert draw_trace(SMALL, 3) == draw_trace(SMALL, 3)
    assert draw_trace(SMALL, 3) != draw_trace(SMALL, 4)
    assert len(draw_trace(SMALL, 3)) == 48
