"""The cache behind the plugin: prompts in, answers in, exact tokens out. It knows tokenizers, but no HTTP."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from router_radix_cache.answer import Sampled, read_answer
from router_radix_cache.encodings import Encoded, Encodings
from router_radix_cache.ends import sampled_ends
from router_radix_cache.match import Match
from router_radix_cache.prompt import known_start
from router_radix_cache.spellings import Spelling, Spellings
from router_radix_cache.tokenizer import Door, Tokenizer
from router_radix_cache.tokens import PackedTokens, Span, decode_text, encode_text
from router_radix_cache.trajectory import Trajectory
from router_radix_cache.tree import RadixTree
from router_radix_cache.unusable import Unusable, UnusableError

IN_LOOP_BYTES = 1 << 17
IN_LOOP_IDS = 1 << 13
IN_LOOP_CHARACTERS = 1 << 9
"""Answers, prompts of ids and texts up to this size are read where they come, within a millisecond; a larger one is
read in a thread, which costs more than that by itself."""


@dataclass(slots=True)
class Turn:
    """One request on its way: the tokens it was sent with, and what they continue.

    ``text`` is what they are stored under, None where they spell no text.
    """

    text: str | None
    tokens: PackedTokens
    known: Match
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The tokens of a text. ``matched_characters`` of it were found, the rest was encoded."""

    text: str | None
    tokens: PackedTokens
    matched_characters: int
    is_complete: bool
    is_ambiguous: bool


@dataclass(slots=True)
class Counts:
    """What happened so far."""

    texts: int = 0
    """Requests with a text that was replaced by ids."""
    ids: int = 0
    """Requests that brought their own ids."""
    reused_tokens: int = 0
    """Tokens of prompts that were known."""
    stored: int = 0
    not_stored: Counter[str] = field(default_factory=Counter)


class TextCache:
    """A radix tree, the tokenizer that speaks its texts, and the prompts it encoded lately."""

    def __init__(self, tree: RadixTree, *, add_special_tokens: bool, prompt_bytes: int) -> None:
        self.tree = tree
        self.counts = Counts()
        self.encodings = Encodings(self._encode, max_bytes=prompt_bytes)
        self.spellings = Spellings(max_bytes=prompt_bytes)
        self._add_special_tokens = add_special_tokens
        self._door: Door
        self._tokenizer: Tokenizer | None = None

    def use(self, door: Door) -> None:
        """Where the tokenizer is, before the first request."""
        self._door = door

    async def _ready(self) -> Tokenizer:
        self._tokenizer = await self._door.ready()
        return self._tokenizer

    # ----------------------------------------------------------------------------------------------------- a request
    def match(self, text: str, session_id: str | None) -> Match:
        """What is known of a new prompt: of its own session if there is anything, else of all."""
        if session_id is not None and (own := self.tree.match(text, session_id=session_id)).token_count:
            return own
        return self.tree.match(text)

    async def begin_text(self, text: str, known: Match) -> Turn:
        """The ids to send for a text. Raises ValueError for what is no text, Reject where no tokenizer is."""
        tokenizer = self._tokenizer or await self._ready()
        tokens, rest = known_start(known, encode_text(text), tokenizer.token_bytes)
        self.counts.reused_tokens += len(tokens)
        if rest:
            await self._add_encoded(tokens, rest)
        self.counts.texts += 1
        return Turn(text, tokens, known, tokenizer)

    def begin_short(self, token_ids: Sequence[int]) -> Turn | None:
        """`begin_ids` of a prompt that takes no time worth a thread; None of another, or before the tokenizer is there.

        Raises ValueError for what are no ids.
        """
        tokenizer = self._tokenizer
        if tokenizer is None or len(token_ids) > IN_LOOP_IDS:
            return None
        ids = packed_ids(token_ids)
        spelling = self.spellings.get(key := ids.tobytes())
        if spelling is None:
            spelling = self._keep(key, ids, spell(tokenizer, ids))
        return self._turn(tokenizer, ids, spelling)

    async def begin_ids(self, token_ids: Sequence[int]) -> Turn:
        """A prompt that came as ids: they are kept as they are. Raises ValueError for what are no ids."""
        tokenizer = self._tokenizer or await self._ready()
        if (turn := self.begin_short(token_ids)) is not None:
            return turn
        ids = packed_ids(token_ids)
        spelling = self.spellings.get(key := ids.tobytes())
        if spelling is None:
            spelling = self._keep(key, ids, await self._door.run(spell, tokenizer, ids))
        else:
            await asyncio.sleep(0)  # siblings come together: not all that is done for each in one turn of the loop
        return self._turn(tokenizer, ids, spelling)

    def _keep(self, key: bytes, ids: array[int], spelling: Spelling) -> Spelling:
        PackedTokens().add_context(ids, spelling.ends)  # checked here, and not again where they come again
        self.spellings.keep(key, spelling)
        return spelling

    def _turn(self, tokenizer: Tokenizer, ids: array[int], spelling: Spelling) -> Turn:
        text, tokens = spelling.text, PackedTokens(ids, spelling.ends[:])
        known = self.tree.match_tokens(text, tokens)
        if known.trajectory is not None:
            tokens.spans, tokens.logprobs = known.sampled()
        self.counts.ids += 1
        self.counts.reused_tokens += known.token_count
        return Turn(text, tokens, known, tokenizer)

    async def store(self, turn: Turn, body: bytes, *, session_id: str | None) -> Trajectory | None:
        """Keeps the sample of an answer behind its prompt; raises ``UnusableError`` when it is not to be kept."""
        if len(body) <= IN_LOOP_BYTES:
            return self.store_short(turn, body, session_id=session_id)
        sampled, ends = await self._door.run(read_sample, turn, body)
        return self._keep_sample(turn, sampled, ends, session_id)

    def store_short(self, turn: Turn, body: bytes, *, session_id: str | None) -> Trajectory | None:
        """The same of an answer of at most ``IN_LOOP_BYTES``."""
        sampled, ends = read_sample(turn, body)
        return self._keep_sample(turn, sampled, ends, session_id)

    def _keep_sample(self, turn: Turn, sampled: Sampled, ends: list[int], session_id: str | None) -> Trajectory | None:
        try:
            for span in sampled.spans:
                _add_span(turn.tokens, sampled, ends, span)
            text = None if turn.text is None else turn.text + sampled.text
            stored = self.tree.insert(
                text, turn.tokens, rid=sampled.rid, session_id=session_id, continued=turn.known.trajectory
            )
        except ValueError as error:
            raise UnusableError(Unusable.REFUSED, str(error)) from error
        self.counts.stored += 1
        return stored

    # --------------------------------------------------------------------------------------------------- a retrieval
    async def retrieve(self, text: str, **narrow: str | None) -> Retrieved:
        """The tokens of ``text``: as they were sent and sampled, and encoded with mask 0 where they were not."""
        tokenizer = self._tokenizer or await self._ready()
        match = self.tree.match(text, **narrow)
        if match.is_complete:
            return Retrieved(text, match.packed(), len(text), is_complete=True, is_ambiguous=match.is_ambiguous)
        tokens, rest = known_start(match, encode_text(text), tokenizer.token_bytes)
        await self._add_encoded(tokens, rest)
        return Retrieved(text, tokens, len(text) - len(rest), is_complete=False, is_ambiguous=match.is_ambiguous)

    def retrieve_by_rid(self, rid: str) -> Retrieved | None:
        """The whole trajectory of a rid, with its text if it has one; None when there is none."""
        match = self.tree.by_rid(rid)
        if match is None:
            return None
        text = decode_text(match.text) if match.text else None
        return Retrieved(text, match.packed(), len(text or ""), is_complete=True, is_ambiguous=False)

    # ------------------------------------------------------------------------------------------------------- encoding
    async def _add_encoded(self, tokens: PackedTokens, text: str) -> None:
        encoded = await self.encodings.get(text, is_start=not len(tokens))
        tokens.add_context(encoded.ids, encoded.ends)

    async def _encode(self, text: str, is_start: bool) -> Encoded:
        tokenizer = self._tokenizer or await self._ready()
        adds_special = is_start and self._add_special_tokens
        if len(text) <= IN_LOOP_CHARACTERS:
            return encode(tokenizer, text, adds_special)
        encoded: Encoded = await self._door.run(encode, tokenizer, text, adds_special)
        return encoded


def encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> Encoded:
    """Ids and ends of one text."""
    [(ids, ends)] = tokenizer.encode_with_ends([text], add_special_tokens=add_special_tokens)
    return Encoded(array("i", ids), array("I", ends))


def packed_ids(token_ids: Sequence[int]) -> array[int]:
    """The ids of a prompt; raises ValueError for what are none."""
    try:
        return array("i", token_ids)
    except TypeError as error:
        raise ValueError(f"these are no token ids: {error}") from error
    except OverflowError as error:
        raise ValueError(f"a token id is out of range: {error}") from error


def spell(tokenizer: Tokenizer, ids: array[int]) -> Spelling:
    """The text that ids spell where they spell one without a loss, and where each ends in it."""
    pieces = tokenizer.token_bytes(ids)
    text = _spelled(tokenizer, ids, pieces)
    return Spelling(text, array("I", bytes(4 * len(ids))) if text is None else _lengths_summed(pieces))


def _spelled(tokenizer: Tokenizer, token_ids: Sequence[int], pieces: Sequence[bytes | None]) -> str | None:
    """The text that the pieces add up to, where the tokenizer says the same of the ids."""
    if None in pieces:
        return None
    joined = b"".join(pieces)  # type: ignore[arg-type]  # none of them is None
    if not getattr(tokenizer, "decodes_by_token", False):
        text = tokenizer.decode(token_ids)
        return text if text and joined == encode_text(text) else None
    try:
        return joined.decode() or None
    except UnicodeDecodeError:
        return None


def _lengths_summed(pieces: Sequence[bytes | None]) -> array[int]:
    sizes = np.fromiter(map(len, pieces), np.uint32, len(pieces))  # type: ignore[arg-type]  # none of them is None
    ends = array("I")
    ends.frombytes(np.cumsum(sizes, dtype=np.uint32).tobytes())
    return ends


def read_sample(turn: Turn, body: bytes) -> tuple[Sampled, list[int]]:
    """The sample of an answer, and where each of its tokens ends in its text."""
    sampled = read_answer(body, len(turn.tokens.ids))
    if turn.text is None:
        return sampled, [0] * len(sampled.token_ids)
    pieces = turn.tokenizer.token_bytes(sampled.token_ids)
    return sampled, sampled_ends(sampled.text, sampled.token_ids, pieces, turn.tokenizer.special_ids)


def _add_span(tokens: PackedTokens, sampled: Sampled, ends: list[int], span: Span) -> None:
    if len(sampled.spans) == 1 and span.stop - span.start == len(ends):
        tokens.add_sampled(sampled.token_ids, ends, sampled.logprobs, span.weight_version)
        return
    part = slice(span.start, span.stop)
    base = ends[span.start - 1] if span.start else 0
    own_ends = [end - base for end in ends[part]] if base else ends[part]
    tokens.add_sampled(sampled.token_ids[part], own_ends, sampled.logprobs[part], span.weight_version)
