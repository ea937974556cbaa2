"""What many_rollouts.py does by hand for longer."""

from __future__ import annotations

import asyncio

from .many_rollouts import over_updates, running


async def test_a_thousand_rollouts_that_are_aborted_at_random_tokens_are_the_uninterrupted_ones() -> None:
    async with running(aborts=True, changes=True) as run:
        numbers = iter(range(1000))

        async def lane() -> None:
            for number in numbers:
                await run.generate(number, 6 + number % 25, stream=number % 4 == 0)

        await asyncio.gather(*(lane() for _ in range(32)))
        assert run.faults == []
        assert run.rollouts == {"whole": 750, "stream": 250}
        assert sum(count for versions, count in run.versions.items() if versions > 2) > 500


async def test_captured_sessions_that_are_aborted_at_random_tokens_are_the_uninterrupted_ones() -> None:
    async with running(aborts=True, seed=2) as run:
        await asyncio.gather(*(run.session(number, 40, 3, stream=bool(number % 2)) for number in range(20)))
        assert run.faults == []
        assert run.rollouts == {"session": 20}


async def test_nobody_sees_an_error_while_weights_change_under_rollouts_and_sessions() -> None:
    run, told = await over_updates(updates=8, rollouts=24, tokens=120, turns=3, chat_share=0.5, interval_s=0.1)
    assert run.faults == [], told
    assert max(run.versions) >= 3, told
