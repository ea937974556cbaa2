from __future__ import annotations

import asyncio
from array import array

import pytest
from router_radix_cache.encodings import Encoded, Encodings


class Slow:
    """Encodes a text to its code points, once it is let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_go_on = asyncio.Event()

    async def __call__(self, text: str, is_start: bool) -> Encoded:
        self.asked.append(text)
        await self.may_go_on.wait()
        if text == "bad":
            raise ValueError(text)
        return Encoded(array("i", map(ord, text)), array("I", range(1, len(text) + 1)))


async def test_a_text_is_encoded_once_however_many_ask_at_a_time_or_later() -> None:
    slow = Slow()
    encodings = Encodings(slow, max_bytes=10_000)
    asking = [asyncio.create_task(encodings.get("ab", is_start=True)) for _ in range(5)]
    await asyncio.sleep(0)
    slow.may_go_on.set()
    assert {encoded.ids.tobytes() for encoded in await asyncio.gather(*asking)} == {array("i", [97, 98]).tobytes()}
    await encodings.get("ab", is_start=True)
    assert (slow.asked, encodings.encoded_tokens) == (["ab"], 2)
    await encodings.get("ab", is_start=False)
    assert slow.asked == ["ab", "ab"]


@pytest.mark.parametrize("leaver", [0, 1])
async def test_one_who_leaves_takes_nothing_from_the_others(leaver: int) -> None:
    slow = Slow()
    encodings = Encodings(slow, max_bytes=10_000)
    asking = [asyncio.create_task(encodings.get("ab", is_start=True)) for _ in range(3)]
    await asyncio.sleep(0)
    asking.pop(leaver).cancel()
    slow.may_go_on.set()
    assert [encoded.ends.tolist() for encoded in await asyncio.gather(*asking)] == [[1, 2], [1, 2]]
    assert slow.asked == ["ab"] * (2 - leaver)


async def test_a_failure_is_told_to_everyone_and_not_remembered() -> None:
    slow = Slow()
    slow.may_go_on.set()
    encodings = Encodings(slow, max_bytes=10_000)
    asking = await asyncio.gather(*(encodings.get("bad", is_start=True) for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in asking] == [ValueError] * 3
    with pytest.raises(ValueError, match="bad"):
        await encodings.get("bad", is_start=True)


async def test_nothing_is_remembered_where_there_is_no_room() -> None:
    slow = Slow()
    encodings = Encodings(slow, max_bytes=0)
    asking = [asyncio.create_task(encodings.get("ab", is_start=True)) for _ in range(3)]
    await asyncio.sleep(0)
    slow.may_go_on.set()
    await asyncio.gather(*asking)
    assert slow.asked == ["ab"]
    await encodings.get("ab", is_start=True)
    assert slow.asked == ["ab", "ab"]


async def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    slow = Slow()
    slow.may_go_on.set()
    encodings = Encodings(slow, max_bytes=700)  # two of them
    for text in ("a", "b", "a", "c", "a", "b"):
        await encodings.get(text, is_start=True)
    assert slow.asked == ["a", "b", "c", "b"]
