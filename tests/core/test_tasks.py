"""Background tasks are bounded, held, and gone at the end."""

import asyncio

import pytest

from router_core.tasks import Tasks


async def test_a_task_above_the_bound_is_not_started() -> None:
    tasks = Tasks(max_tasks=1)
    held = asyncio.Event()
    first = tasks.spawn(_wait(held), name="first")
    with pytest.raises(RuntimeError, match="'second' is not started: 1 background tasks are running"):
        tasks.spawn(_wait(held), name="second")
    held.set()
    await first
    await asyncio.sleep(0)
    assert len(tasks) == 0
    await tasks.spawn(_wait(held), name="third")


async def test_a_task_that_raises_is_logged_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks(max_tasks=10)
    task = tasks.spawn(_raise(), name="breaks")
    await asyncio.wait({task})
    await asyncio.sleep(0)
    assert "background task 'breaks' failed: ValueError('at work')" in caplog.text


async def test_finish_waits_then_cancels() -> None:
    tasks = Tasks(max_tasks=10)
    held = asyncio.Event()
    quick, slow = tasks.spawn(asyncio.sleep(0), name="quick"), tasks.spawn(_wait(held), name="slow")
    await tasks.finish(0.01)
    assert (quick.cancelled(), slow.cancelled(), len(tasks)) == (False, True, 0)
    await tasks.finish(0.01)


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _raise() -> None:
    raise ValueError("at work")
