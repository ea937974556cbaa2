"""Packed tokens: ids, where each ends in the text, which were sampled, and their logprobs.

A text is UTF-8 bytes here, and a token is known by its *end*: the byte offset in the text behind its last byte. Ends
never decrease. A token without text of its own (a special token that the text leaves out) has the end of the token
before it. A token that holds only a part of a character has either the true offset inside the character or the end of
the whole character, as tokenizers report it; never the offset before it, or a cut there would take half a character.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

SHORT = 100
"""Tokens up to which Python is faster than numpy."""


def encode_text(text: str) -> bytes:
    """UTF-8 bytes of a text; a lone surrogate, which JSON can carry, is kept as three bytes."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(encoded: bytes) -> str:
    """The text of bytes made by ``encode_text``."""
    return encoded.decode("utf-8", "surrogatepass")


class Span(NamedTuple):
    """Sampled tokens ``[start, stop)`` of one weight version (None: the worker did not say)."""

    start: int
    stop: int
    weight_version: str | None


def add_span(spans: list[Span], span: Span) -> None:
    """Append a span, joined to the last one when it continues it under the same weight version."""
    if spans and spans[-1].stop == span.start and spans[-1].weight_version == span.weight_version:
        span = Span(spans.pop().start, span.stop, span.weight_version)
    spans.append(span)


def spans_within(spans: Iterable[Span], start: int, stop: int) -> list[Span]:
    """The parts of the spans that lie in tokens ``[start, stop)``, joined where they touch."""
    found: list[Span] = []
    for span in spans:
        if span.start < stop and span.stop > start:
            is_cut = span.start < start or span.stop > stop
            add_span(found, Span(max(span.start, start), min(span.stop, stop), span.weight_version) if is_cut else span)
    return found


class PackedTokens:
    """One token sequence as it grows: context by ``add_context``, sampled tokens by ``add_sampled``.

    16 bytes a sampled token and 8 a context token. Logprobs are kept for sampled tokens only, in nats, as float64:
    float32 does not give back what the worker sent.
    """

    __slots__ = ("ends", "ids", "logprobs", "spans")

    def __init__(self, ids: array[int] | None = None, ends: array[int] | None = None) -> None:
        """With ``ids`` (``array("i")``) and their ``ends`` (``array("I")``): context, checked before; both are kept."""
        self.ids: array[int] = array("i") if ids is None else ids
        self.ends: array[int] = array("I") if ends is None else ends
        self.spans: list[Span] = []
        self.logprobs: array[float] = array("d")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def byte_length(self) -> int:
        """Length of the text these tokens cover, in UTF-8 bytes."""
        return self.ends[-1] if self.ends else 0

    @property
    def loss_mask(self) -> list[int]:
        """1 for a sampled token, else 0."""
        mask = [0] * len(self)
        for span in self.spans:
            mask[span.start : span.stop] = [1] * (span.stop - span.start)
        return mask

    @property
    def all_logprobs(self) -> list[float]:
        """A logprob for each token, 0.0 where the mask is 0."""
        values = [0.0] * len(self)
        taken = 0
        for span in self.spans:
            size = span.stop - span.start
            values[span.start : span.stop] = self.logprobs[taken : taken + size].tolist()
            taken += size
        return values

    @property
    def weight_versions(self) -> list[str | None]:
        """The weight version of each sampled token, None elsewhere."""
        versions: list[str | None] = [None] * len(self)
        for span in self.spans:
            versions[span.start : span.stop] = [span.weight_version] * (span.stop - span.start)
        return versions

    def add_context(self, token_ids: Sequence[int], ends: Sequence[int]) -> None:
        """Append tokens that were not sampled; ``ends`` count from where the sequence ended."""
        ids, offsets = self._checked(token_ids, ends)
        self.ids.extend(ids)
        self.ends.extend(offsets)

    def add_sampled(
        self,
        token_ids: Sequence[int],
        ends: Sequence[int],
        logprobs: Sequence[float],
        weight_version: str | None = None,
    ) -> None:
        """Append sampled tokens; ``token_ids``, ``ends`` and ``logprobs`` are equally long or ``ValueError`` is
        raised."""
        if len(logprobs) != len(token_ids):
            raise ValueError(f"{len(logprobs)} logprobs for {len(token_ids)} sampled tokens; nothing was added")
        ids, offsets = self._checked(token_ids, ends)
        packed = array("d", logprobs)
        if ids:
            start = len(self.ids)
            add_span(self.spans, Span(start, start + len(ids), weight_version))
        self.ids.extend(ids)
        self.ends.extend(offsets)
        self.logprobs.extend(packed)

    def first(self, count: int) -> PackedTokens:
        """The first ``count`` tokens, as a sequence of their own."""
        tokens = PackedTokens()
        tokens.ids = self.ids[:count]
        tokens.ends = self.ends[:count]
        tokens.spans = spans_within(self.spans, 0, count)
        tokens.logprobs = self.logprobs[: sum(span.stop - span.start for span in tokens.spans)]
        return tokens

    def _checked(self, token_ids: Sequence[int], ends: Sequence[int]) -> tuple[array[int], array[int]]:
        if len(ends) != len(token_ids):
            raise ValueError(f"{len(ends)} ends for {len(token_ids)} tokens; nothing was added")
        base = self.ends[-1] if self.ends else 0
        try:
            ids, offsets = array("i", token_ids), array("I", ends)
        except OverflowError as error:
            raise ValueError(f"a token id or an end is out of range ({error}); nothing was added") from error
        if not ids:
            return ids, offsets
        if len(ids) <= SHORT:
            smallest, told = min(ids), offsets.tolist()
            is_ordered = told == sorted(told)
            if base:
                offsets = array("I", [end + base for end in told])
        else:
            smallest, counted = int(np.frombuffer(ids, np.int32).min()), np.frombuffer(offsets, np.uint32)
            is_ordered = not (counted[1:] < counted[:-1]).any()
            if base:
                offsets = array("I", (counted + np.uint32(base)).tobytes())
        if smallest < 0:
            raise ValueError(f"token id {smallest} is negative; nothing was added")
        if not is_ordered:
            raise ValueError("the ends of the tokens decrease; nothing was added")
        return ids, offsets
