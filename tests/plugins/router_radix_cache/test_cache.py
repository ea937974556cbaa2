"""What is read in the loop and what in a thread, and ids that spell a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from router_radix_cache.cache import IN_LOOP_CHARACTERS, IN_LOOP_IDS, TextCache, packed_ids, spell
from router_radix_cache.tree import RadixTree


class Bytes:
    """A tokenizer of 256 ids, each a byte; it says so, or is asked for the text as well."""

    special_ids: frozenset[int] = frozenset()

    def __init__(self, *, decodes_by_token: bool = True) -> None:
        self.decodes_by_token = decodes_by_token
        self.decoded = 0

    def encode_with_ends(
        self, texts: Sequence[str], *, add_special_tokens: bool = False
    ) -> list[tuple[list[int], list[int]]]:
        return [(list(text.encode()), list(range(1, len(text.encode()) + 1))) for text in texts]

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes | None]:
        return [bytes([token_id]) if 0 <= token_id < 256 else None for token_id in token_ids]

    def decode(self, token_ids: Sequence[int]) -> str:
        self.decoded += 1
        return bytes(token_id for token_id in token_ids if 0 <= token_id < 256).decode(errors="replace")


class CountingDoor:
    def __init__(self) -> None:
        self.tokenizer = Bytes()
        self.runs = 0

    async def ready(self) -> Bytes:
        return self.tokenizer

    async def run(self, work: Callable[..., Any], *args: Any) -> Any:
        self.runs += 1
        return work(*args)


@pytest.mark.parametrize(("count", "runs"), [(IN_LOOP_IDS, 0), (IN_LOOP_IDS + 1, 1)])
async def test_a_thread_is_asked_only_for_what_costs_more_than_the_asking(count: int, runs: int) -> None:
    cache, door = TextCache(RadixTree(), add_special_tokens=False, prompt_bytes=1 << 20), CountingDoor()
    cache.use(door)
    turn = await cache.begin_ids([97] * count)
    assert (turn.text, door.runs) == ("a" * count, runs)


@pytest.mark.parametrize(("count", "runs"), [(IN_LOOP_CHARACTERS, 0), (IN_LOOP_CHARACTERS + 1, 1)])
async def test_so_it_is_for_a_text(count: int, runs: int) -> None:
    cache, door = TextCache(RadixTree(), add_special_tokens=False, prompt_bytes=1 << 20), CountingDoor()
    cache.use(door)
    turn = await cache.begin_text("a" * count, cache.match("a" * count, None))
    assert (turn.tokens.ids.tolist(), door.runs) == ([97] * count, runs)


@pytest.mark.parametrize(
    ("ids", "text"),
    [(list("né".encode()), "né"), ([110, 0xC3], None), ([110, 999], None), ([0xEF, 0xBF, 0xBD], "\ufffd")],
)
@pytest.mark.parametrize("decodes_by_token", [True, False])
def test_ids_spell_a_text_only_without_a_loss(ids: list[int], text: str | None, decodes_by_token: bool) -> None:
    tokenizer = Bytes(decodes_by_token=decodes_by_token)
    spelling = spell(tokenizer, packed_ids(ids))
    assert spelling.text == text
    assert spelling.ends.tolist() == ([0] * len(ids) if text is None else list(range(1, len(ids) + 1)))
    assert tokenizer.decoded == (0 if decodes_by_token or 999 in ids else 1)


@pytest.mark.parametrize("ids", [[-1], [1 << 31], ["a"], [None]])
async def test_what_is_no_id_is_refused(ids: list[Any]) -> None:
    cache = TextCache(RadixTree(), add_special_tokens=False, prompt_bytes=1 << 20)
    cache.use(CountingDoor())
    for _ in range(2):  # not remembered either
        with pytest.raises(ValueError, match="id"):
            await cache.begin_ids(ids)


async def test_a_short_prompt_needs_no_waiting_once_the_tokenizer_is_there() -> None:
    cache = TextCache(RadixTree(), add_special_tokens=False, prompt_bytes=1 << 20)
    cache.use(CountingDoor())
    assert cache.begin_short([97]) is None
    await cache.begin_ids([97])
    turn = cache.begin_short([97, 98])
    assert turn is not None
    assert (turn.text, turn.tokens.ids.tolist(), turn.tokens.ends.tolist()) == ("ab", [97, 98], [1, 2])
    assert cache.begin_short([97] * (IN_LOOP_IDS + 1)) is None


async def test_a_prompt_that_came_before_is_its_own_whatever_becomes_of_the_first() -> None:
    cache = TextCache(RadixTree(), add_special_tokens=False, prompt_bytes=1 << 20)
    cache.use(CountingDoor())
    first = await cache.begin_ids([97, 98])
    first.tokens.add_sampled([99], [1], [-0.5])
    second = await cache.begin_ids([97, 98])
    assert (second.tokens.ids.tolist(), second.tokens.ends.tolist()) == ([97, 98], [1, 2])
    assert (second.tokens.spans, second.tokens.logprobs.tolist()) == ([], [])


async def test_a_prompt_that_siblings_send_is_read_once_and_each_has_its_own_tokens() -> None:
    cache, door = TextCache(RadixTree(), add_special_tokens=False, prompt_bytes=1 << 20), CountingDoor()
    cache.use(door)
    ids = [97] * (IN_LOOP_IDS + 1)
    first, second = await cache.begin_ids(ids), await cache.begin_ids(list(ids))
    assert door.runs == 1
    first.tokens.add_sampled([98], [1], [-0.5])
    assert second.text == first.text
    assert second.tokens.ids.tolist() == ids
    assert second.tokens.ends.tolist() == list(range(1, len(ids) + 1))


async def test_what_was_read_longest_ago_is_forgotten_first() -> None:
    cache, door = TextCache(RadixTree(), add_special_tokens=False, prompt_bytes=1000), CountingDoor()
    cache.use(door)
    for token_id in (97, 98, 97, 99, 100, 101):
        await cache.begin_ids([token_id] * 10)
    assert len(cache.spellings) == 2
