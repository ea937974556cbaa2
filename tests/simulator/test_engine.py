"""The simulated engine and its cache obey their rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulator.engine import Job, SimulatedEngine, Speed
from tests.simulator.kv_cache import KvCache, Segment

SPEED = Speed(step_s=0.01, step_per_request_s=0.001, prefill_tokens_per_s=1000.0, max_running=2, kv_tokens=10_000)


def job(name: str, prompt: int, output: int) -> Job:
    return Job(name, [Segment(f"{name}-prompt", prompt)], Segment(f"{name}-output", output))


def play(engine: SimulatedEngine) -> dict[str, float]:
    """When each request ends, nothing more being sent."""
    ends: dict[str, float] = {}
    while (end := engine.next_end()) is not None:
        for ended in engine.finish(end):
            ends[ended.tag] = end
    return ends


def test_a_request_takes_its_prefill_and_then_a_step_for_each_token() -> None:
    engine = SimulatedEngine(SPEED)
    engine.submit(job("a", 500, 100), now=2.0)
    assert play(engine) == {"a": pytest.approx(2.0 + 0.5 + 100 * 0.011)}


def test_requests_share_the_steps_and_slow_each_other() -> None:
    engine = SimulatedEngine(SPEED)
    engine.submit(job("a", 500, 100), now=0.0)
    engine.submit(job("b", 500, 200), now=0.0)
    both = 1.0 + 100 * 0.012
    assert play(engine) == {"a": pytest.approx(both), "b": pytest.approx(both + 100 * 0.011)}


def test_a_prefill_stalls_the_requests_that_decode() -> None:
    engine = SimulatedEngine(SPEED)
    engine.submit(job("a", 1, 100), now=0.0)
    engine.submit(job("b", 2000, 1), now=0.101)
    assert play(engine)["a"] > 100 * 0.011 + 2.0


def test_a_request_waits_for_a_slot() -> None:
    engine = SimulatedEngine(SPEED)
    for name in "abc":
        engine.submit(job(name, 10, 10), now=0.0)
    assert engine.load == 3
    ends = play(engine)
    assert ends["c"] > ends["a"] == ends["b"]


def test_a_cached_prefix_is_not_computed_again() -> None:
    engine = SimulatedEngine(SPEED)
    first = job("a", 1000, 10)
    engine.submit(first, now=0.0)
    play(engine)
    later = Job("a2", [*first.path, Segment("new", 100)], Segment("a2-output", 10))
    engine.submit(later, now=100.0)
    assert play(engine)["a2"] == pytest.approx(100.0 + 0.1 + 10 * 0.011)
    assert later.hit_tokens == 1010


def test_a_dead_engine_has_lost_its_requests_and_its_cache() -> None:
    engine = SimulatedEngine(SPEED)
    for name in "abc":
        engine.submit(job(name, 10, 10), now=0.0)
    assert sorted(lost.tag for lost in engine.die(0.05)) == ["a", "b", "c"]
    assert (engine.load, engine.cache.tokens, engine.next_end()) == (0, 0, None)


def test_a_request_that_fits_no_cache_is_an_error_and_no_standstill() -> None:
    with pytest.raises(ValueError, match="fits no cache"):
        SimulatedEngine(SPEED).submit(job("a", 20_000, 1), now=0.0)


paths = st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(
    lambda letters: [Segment("".join(letters[: end + 1]), 10) for end in range(len(letters))]
)


@given(steps=st.lists(st.tuples(paths, st.booleans()), max_size=30))
def test_the_cache_stays_within_its_capacity_and_keeps_what_is_in_use(steps: list[tuple[list[Segment], bool]]) -> None:
    cache = KvCache(capacity=60)
    in_use: list[list[Segment]] = []
    for path, gives_back in steps:
        if cache.take(path):
            in_use.append(path)
        if gives_back and in_use:
            cache.give_back(in_use.pop(0))
        assert cache.tokens <= cache.capacity
        for used in in_use:
            assert cache.hit_tokens(used) == 10 * len(used)
