"""The chunks of an answer that passes and whose rows are taken."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from router_core import MemberStripper, WorkerFault
from router_routed_experts.reading import AnswerReader
from router_routed_experts.sglext import SglextFilter


async def passing(
    chunks: AsyncIterator[bytes],
    reader: AnswerReader,
    length: int | None,
    *,
    stripper: MemberStripper | None,
    events: SglextFilter | None,
    take: Callable[[], Awaitable[None]],
    lose: Callable[[WorkerFault], None],
) -> AsyncIterator[bytes]:
    """The chunks as the client is to have them; the rows are there before it sees that the answer has ended.

    With a ``length`` it sees that by the last byte.
    """
    is_taken = False
    try:
        async for chunk in chunks:
            reader.feed(chunk)
            if reader.bytes_fed == length and not is_taken:
                is_taken = True
                await take()
            passed = chunk if stripper is None else stripper.feed(chunk)
            if events is not None:
                passed = events.feed(passed)
            if passed:
                yield passed
    except WorkerFault as error:
        lose(error)
        raise
    if not is_taken:
        await take()
    rest = b"" if stripper is None else stripper.rest()
    if events is not None:
        rest = events.feed(rest) + events.rest()
    if rest:
        yield rest
