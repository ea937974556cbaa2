"""The chunks of an answer that passes and is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from router_core import MemberStripper
from router_radix_cache.tee import AnswerTee


async def passing(
    chunks: AsyncIterator[bytes],
    tee: AnswerTee,
    stripper: MemberStripper | None,
    store: Callable[[], Awaitable[None]],
) -> AsyncIterator[bytes]:
    """The chunks as the client is to have them; the answer is stored before the client sees that it has ended."""
    async for chunk in chunks:
        tee.feed(chunk)
        passed = chunk if stripper is None else stripper.feed(chunk)
        if passed:
            yield passed
    await store()
    if stripper is not None and (rest := stripper.rest()):
        yield rest
