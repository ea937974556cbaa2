"""What a caller does around the tree, with a tokenizer small enough to read: words, each with the space before it."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby

from router_radix_cache.match import Match
from router_radix_cache.tokens import PackedTokens, decode_text, encode_text
from router_radix_cache.tree import RadixTree


def ends_from_pieces(pieces: Iterable[bytes]) -> array[int]:
    """Ends of tokens whose bytes are known one by one."""
    return array("I", accumulate(len(piece) for piece in pieces))


def tokens_from_lists(
    token_ids: Sequence[int],
    ends: Sequence[int],
    loss_mask: Sequence[int],
    logprobs: Sequence[float],
    weight_versions: Sequence[str | None],
) -> PackedTokens:
    """From equally long lists, one entry a token; the logprob of a token with mask 0 is not kept."""
    tokens = PackedTokens()
    rows = zip(token_ids, ends, loss_mask, logprobs, weight_versions, strict=True)
    for (mask, version), run in groupby(rows, key=lambda row: (row[2], row[4])):
        ids, stops, _, sampled, _ = zip(*run, strict=True)
        steps = [stop - tokens.byte_length for stop in stops]
        if mask:
            tokens.add_sampled(ids, steps, sampled, version)
        else:
            tokens.add_context(ids, steps)
    return tokens


def remaining_text(match: Match) -> str:
    """The text behind the match, which has to be encoded afresh."""
    return decode_text(match.text[match.matched_bytes :])


class Rollout:
    """Sends texts, samples given pieces, and retrieves; ids are given out in the order pieces are first seen."""

    def __init__(self, **bounds) -> None:
        self.tree = RadixTree(**bounds)
        self.vocabulary: dict[bytes, int] = {}
        self.encoded: list[str] = []

    def ids(self, pieces: list[str | bytes]) -> list[int]:
        encoded = [piece if isinstance(piece, bytes) else encode_text(piece) for piece in pieces]
        return [self.vocabulary.setdefault(piece, len(self.vocabulary) + 1) for piece in encoded]

    def encode(self, text: str) -> list[str]:
        self.encoded.append(text)
        return re.findall(r"\s?\w+|[^\w]", text)

    def prompt(self, text: str, session_id: str | None = None) -> PackedTokens:
        kept = self.tree.match(text, session_id=session_id).reusable()
        tokens = kept.packed()
        pieces = self.encode(remaining_text(kept))
        tokens.add_context(self.ids(pieces), ends_from_pieces([encode_text(piece) for piece in pieces]))
        return tokens

    def generate(self, text, out, *, rid=None, session_id=None, version="v1", logprobs=None) -> list[int]:
        """Returns the ids the worker was sent."""
        tokens = self.prompt(text, session_id)
        sent = tokens.ids.tolist()
        pieces = [piece if isinstance(piece, bytes) else encode_text(piece) for piece in out]
        logprobs = [-0.01 * (number + 1) for number in range(len(out))] if logprobs is None else logprobs
        tokens.add_sampled(self.ids(out), ends_from_pieces(pieces), logprobs, version)
        self.tree.insert(text + b"".join(pieces).decode(), tokens, rid=rid, session_id=session_id)
        return sent

    def retrieve(self, text: str, **narrow) -> tuple[list[int], list[int], list[float], list[str | None]]:
        """Tokens, mask, logprobs and weight versions for the whole text; what is not known is encoded with mask 0."""
        match = self.tree.match(text, **narrow)
        rest = len(tail := self.ids(self.encode(remaining_text(match))))
        return (
            match.token_ids + tail,
            match.loss_mask + [0] * rest,
            match.logprobs + [0.0] * rest,
            match.weight_versions + [None] * rest,
        )

    def expected(self, *parts: tuple[str, object]) -> tuple[list[int], list[int], list[float], list[str | None]]:
        """The answer for prompt parts ("p", text) and sampled parts ("g", pieces) of version v1."""
        tokens, mask, logprobs, versions = [], [], [], []
        for kind, part in parts:
            pieces = self.encode(part) if kind == "p" else part
            tokens += self.ids(pieces)
            mask += [int(kind == "g")] * len(pieces)
            logprobs += [-0.01 * (number + 1) if kind == "g" else 0.0 for number in range(len(pieces))]
            versions += ["v1" if kind == "g" else None] * len(pieces)
        return tokens, mask, logprobs, versions
