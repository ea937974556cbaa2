"""Compares routing policies in virtual time: ``python -m tests.simulator --help``."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from tests.simulator.policies import POLICIES, gates
from tests.simulator.routing import Policy
from tests.simulator.scenarios import SITUATIONS, Situation
from tests.simulator.simulation import Result, Simulation
from tests.simulator.trace import draw_trace

Results = Mapping[tuple[str, str], Sequence[Result]]
"""Policy's and situation's name -> a result for each seed."""

FIGURES: dict[str, Callable[[Result], float]] = {
    "Makespan in s": lambda result: result.makespan_s,
    "Share of prompt tokens found in a cache, in %": lambda result: 100 * result.hit_share,
    "Turns served by another worker than the turn before, in %": lambda result: 100 * result.moves / result.turns,
    "Mean seconds of a turn": lambda result: statistics.mean(result.latencies_s),
    "p99 seconds of a turn": lambda result: result.latency_s(0.99),
}


def run(policy: Policy, situation: Situation, seed: int) -> Result:
    """One policy in one situation."""
    return asyncio.run(Simulation(policy, situation.scenario).play(draw_trace(situation.shape, seed)))


def run_all(policies: Sequence[Policy], situations: Sequence[Situation], seeds: int, jobs: int) -> Results:
    """Every policy in every situation with every seed."""
    tasks = list(product(policies, situations, range(1, seeds + 1)))
    with ProcessPoolExecutor(jobs) as pool:
        results = list(pool.map(run, *zip(*tasks, strict=True)))
    return {
        (policy.name, situation.name): results[at * seeds : (at + 1) * seeds]
        for at, (policy, situation) in enumerate(product(policies, situations))
    }


def table(title: str, figure: Callable[[Result], float], results: Results, with_range: bool) -> str:
    """A Markdown table, policies by situations: means over the seeds, on wish with the smallest and the largest."""
    policies = list(dict.fromkeys(policy for policy, _ in results))
    situations = list(dict.fromkeys(situation for _, situation in results))
    lines = [f"**{title}**", "", f"| | {' | '.join(situations)} |", f"|---|{'---:|' * len(situations)}"]
    for policy in policies:
        cells = []
        for situation in situations:
            values = [figure(result) for result in results[policy, situation]]
            spread = f" ({min(values):.0f} to {max(values):.0f})" if with_range else ""
            cells.append(f"{statistics.mean(values):.1f}{spread}")
        lines.append(f"| {policy} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="traces for each situation (default 5)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--situation", action="append", choices=[situation.name for situation in SITUATIONS])
    parser.add_argument("--policy", action="append", help="only policies whose name begins so; may be repeated")
    parser.add_argument("--gates", action="store_true", help="sticky sessions under many gates instead")
    parser.add_argument("--ranges", action="store_true", help="show the smallest and largest of the seeds too")
    options = parser.parse_args(arguments)
    policies = gates() if options.gates else POLICIES
    if options.policy:
        policies = [policy for policy in policies if policy.name.startswith(tuple(options.policy))]
    if not policies:
        parser.error(f"no policy begins with {' or '.join(options.policy)}")
    situations = [s for s in SITUATIONS if not options.situation or s.name in options.situation]
    for situation in situations:
        print(f"- *{situation.name}*: {situation.about}")
    results = run_all(policies, situations, options.seeds, options.jobs)
    for title, figure in FIGURES.items():
        print("\n" + table(title, figure, results, options.ranges))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
