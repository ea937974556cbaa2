"""Compares routing policies in virtual time: ``python -m tests.simulator --help``."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from tests.simulator.policies import POLICIES, gates
from tests.simulator.routing import Policy
from tests.simulator.scenarios import SITUATIONS, Situation
from tests.simulator.simulation import Result, Simulation
from tests.simulator.trace import draw_trace

HEAD = "| policy | makespan s | of least_inflight | prefix hits | turns moved | mean turn s | p99 s |"
RULE = "|---|---:|---:|---:|---:|---:|---:|"


def run(policy: Policy, situation: Situation, seed: int) -> Result:
    """One policy in one situation."""
    return asyncio.run(Simulation(policy, situation.scenario).play(draw_trace(situation.shape, seed)))


def row(policy: Policy, results: Sequence[Result], baseline_s: float | None) -> str:
    """A line of the table: means over the seeds, the makespan with its smallest and largest."""

    def mean(value: Callable[[Result], float]) -> float:
        return statistics.mean(value(result) for result in results)

    makespans = [result.makespan_s for result in results]
    makespan = statistics.mean(makespans)
    share = f"{makespan / baseline_s:.0%}" if baseline_s else ""
    cells = (
        policy.name,
        f"{makespan:.0f} ({min(makespans):.0f} to {max(makespans):.0f})",
        share,
        f"{mean(lambda result: result.hit_share):.1%}",
        f"{mean(lambda result: result.moves / result.turns):.1%}",
        f"{mean(lambda result: statistics.mean(result.latencies_s)):.2f}",
        f"{mean(lambda result: result.latency_s(0.99)):.1f}",
    )
    return f"| {' | '.join(cells)} |"


def compare(policies: Sequence[Policy], situations: Sequence[Situation], seeds: int, jobs: int) -> None:
    """Prints a Markdown table for each situation."""
    with ProcessPoolExecutor(jobs) as pool:
        for situation in situations:
            pairs = list(product(policies, range(1, seeds + 1)))
            results = list(
                pool.map(run, [policy for policy, _ in pairs], [situation] * len(pairs), [seed for _, seed in pairs])
            )
            by_policy = {policy.name: results[at * seeds : (at + 1) * seeds] for at, policy in enumerate(policies)}
            base = by_policy.get("least_inflight")
            baseline_s = statistics.mean(result.makespan_s for result in base) if base else None
            print(f"\n**{situation.name}**: {situation.about}\n\n{HEAD}\n{RULE}")
            for policy in policies:
                print(row(policy, by_policy[policy.name], baseline_s), flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="traces for each situation (default 5)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--situation", action="append", choices=[situation.name for situation in SITUATIONS])
    parser.add_argument("--policy", action="append", help="only policies whose name begins so; may be repeated")
    parser.add_argument("--gates", action="store_true", help="sticky sessions under many gates instead")
    options = parser.parse_args(arguments)
    policies = gates() if options.gates else POLICIES
    if options.policy:
        policies = [policy for policy in policies if policy.name.startswith(tuple(options.policy))]
    if not policies:
        parser.error(f"no policy begins with {' or '.join(options.policy)}")
    situations = [s for s in SITUATIONS if not options.situation or s.name in options.situation]
    compare(policies, situations, options.seeds, options.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
